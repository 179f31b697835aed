package io.shoal.core

import io.shoal.core.wire.Manifest
import io.shoal.core.wire.Tasks
import io.shoal.core.wire.Window

/**
 * These windows as the task of a bundle takes them: all of them as windows to train and test on where it needs no labels.
 *
 * @throws DataException their labels are not those of the task
 */
internal fun Windows.takenFor(manifest: Manifest): Windows {
    if (!manifest.needsLabels) return if (numUnlabelled == 0 && trainY.shape.size == 1 && testY.shape.size == 1) this else withoutLabels()
    val (train, test) = Pair(fitLabels(inOrder(trainY, manifest), manifest, "train"), fitLabels(inOrder(testY, manifest), manifest, "test"))
    return if (train === trainY && test === testY) this else Windows(trainX, train, testX, test, unlabelledX)
}

/** Labels with the columns of [names] in the order of the bundle's. */
private fun Windows.inOrder(y: Tensor, manifest: Manifest): Tensor {
    val expected = manifest.classes
    if (manifest.task !in setOf(Tasks.MULTI_LABEL, Tasks.REGRESSION) || names == expected || y.shape.drop(1) != listOf(names.size)) return y
    if (names.sorted() != expected.sorted()) {
        throw DataException("labels are called ${names.joinToString()}, and the bundle's are ${expected.joinToString()}")
    }
    val columns = Tensor(y.dtype, listOf(y.size, 1), y.data)
    val from = IntArray(expected.size) { names.indexOf(expected[it]) }
    return Tensor(y.dtype, y.shape, columns.take(IntArray(y.size) { it / from.size * from.size + from[it % from.size] }).data)
}

/** The labels of the training windows that [takenFor] has, and how many it has for testing. */
internal fun Windows.labelsFor(needsLabels: Boolean): Pair<Tensor, Int> {
    if (needsLabels) return Pair(trainY, numTest)
    val (train, test) = splitUnlabelled(numTrain, numTest, numUnlabelled)
    return Pair(Tensor.of(LongArray(train)), test)
}

/**
 * How many windows a device trains on and how many it tests on, in a task that needs no labels: those without a label come after those with
 * one, and where none was set apart for testing, the last quarter of all is.
 */
internal fun splitUnlabelled(numTrain: Int, numTest: Int, numUnlabelled: Int): Pair<Int, Int> {
    val count = numTrain + numUnlabelled
    val heldBack = if (numTest > 0 || numUnlabelled == 0) 0 else count / 4
    return Pair(count - heldBack, if (numTest > 0) numTest else heldBack)
}

/** The windows for a task that needs no labels. */
private fun Windows.withoutLabels(): Windows {
    val x = concatenate(listOf(trainX, unlabelledX))
    val (cut, _) = splitUnlabelled(numTrain, numTest, numUnlabelled)
    val test = if (numTest > 0) testX else x.take(IntArray(x.rows - cut) { cut + it })
    return Windows(x.take(IntArray(cut) { it }), Tensor.of(LongArray(cut)), test, Tensor.of(LongArray(test.rows)))
}

/**
 * These windows, of the type that a bundle asks for.
 *
 * @throws DataException ids are asked for, and these are measurements, or a value is out of the vocabulary
 */
internal fun Windows.fitting(window: Window): Windows {
    val (train, test) = Pair(fitting(trainX, window, "training windows"), fitting(testX, window, "test windows"))
    val unlabelled = fitting(unlabelledX, window, "windows without labels")
    val unchanged = train === trainX && test === testX && unlabelled === unlabelledX
    return if (unchanged) this else Windows(train, trainY, test, testY, unlabelled, names)
}

/**
 * Examples (n, window) of the type that [window] has: ids are checked, and whole numbers are measurements where no ids are asked for; of
 * its length where it has windows that are padded ([padded]). [origin] begins the error.
 *
 * @throws DataException ids are asked for, and these are measurements, or a value is out of the vocabulary
 */
internal fun fitting(x: Tensor, window: Window, origin: String): Tensor {
    if (window.vocabulary == 0) {
        if (x.dtype == DType.FLOAT32) return toLength(x, window)
        val ids = x.longs()
        return toLength(Tensor.of(FloatArray(x.size) { ids.get().toFloat() }, x.shape), window)
    }
    if (x.dtype != DType.INT64) {
        if (x.size == 0) return Tensor.allocate(DType.INT64, x.shape)
        throw DataException("$origin: x is $x, expected whole numbers, ids from 0 to ${window.vocabulary - 1}")
    }
    val ids = x.longs()
    val perWindow = if (x.rows == 0) 1 else x.size / x.rows
    for (i in 0 until x.size) {
        val id = ids.get()
        if (id !in 0 until window.vocabulary) {
            throw DataException("$origin: x holds the id $id in window ${i / perWindow}: expected ids from 0 to ${window.vocabulary - 1}")
        }
    }
    return x
}

/**
 * Examples to predict, at least one, [fitting] what a bundle called [name] asks for.
 *
 * @throws DataException they have another shape, there is none, or as [fitting]
 */
internal fun examples(x: Tensor, window: Window, name: String): Tensor {
    val made = if (x.shape.isEmpty()) x else fitting(x, window, "examples to predict")
    if (made.shape.drop(1) == window.shape && x.rows > 0) return made
    throw DataException("examples $x, bundle $name expects ${window.dtype} of at least one by ${window.shape}")
}
