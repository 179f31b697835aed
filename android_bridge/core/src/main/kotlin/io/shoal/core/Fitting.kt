package io.shoal.core

import io.shoal.core.wire.Manifest
import io.shoal.core.wire.Tasks
import io.shoal.core.wire.Window

/**
 * Return these windows as a bundle's task takes them. If it needs no labels, windows without labels
 * become windows to train and test on.
 *
 * @throws DataException the labels are not those of the task
 */
internal fun Windows.forTask(manifest: Manifest): Windows {
    if (!manifest.needsLabels) return if (numUnlabelled == 0 && trainY.shape.size == 1 && testY.shape.size == 1) this else withoutLabels()
    val (train, test) = Pair(fitLabels(inOrder(trainY, manifest), manifest, "train"), fitLabels(inOrder(testY, manifest), manifest, "test"))
    return if (train === trainY && test === testY) this else Windows(trainX, train, testX, test, unlabelledX, testBeginsS = testBeginsS)
}

/** Return labels with their columns, called [names], in the order of the bundle's names. */
private fun Windows.inOrder(y: Tensor, manifest: Manifest): Tensor {
    val expected = manifest.classes
    if (manifest.task !in setOf(Tasks.MULTI_LABEL, Tasks.REGRESSION) || names == expected || y.shape.drop(1) != listOf(names.size)) return y
    if (names.sorted() != expected.sorted()) {
        throw DataException("labels: expected the names ${expected.joinToString()}, got ${names.joinToString()}")
    }
    val columns = Tensor(y.dtype, listOf(y.size, 1), y.data)
    val from = IntArray(expected.size) { names.indexOf(expected[it]) }
    return Tensor(y.dtype, y.shape, columns.take(IntArray(y.size) { it / from.size * from.size + from[it % from.size] }).data)
}

/**
 * Return the labels of the training windows that [forTask] returns, and the number of its test
 * windows.
 */
internal fun Windows.labelsFor(needsLabels: Boolean): Pair<Tensor, Int> {
    if (needsLabels) return Pair(trainY, numTest)
    val (train, test) = splitUnlabelled(numTrain, numTest, numUnlabelled)
    return Pair(Tensor.of(LongArray(train)), test)
}

/**
 * Return the number of training windows and of test windows in a task that needs no labels. Windows
 * without a label come after those with one. If the device has no test windows, the last quarter of
 * all is for testing.
 */
internal fun splitUnlabelled(numTrain: Int, numTest: Int, numUnlabelled: Int): Pair<Int, Int> {
    val count = numTrain + numUnlabelled
    val testShare = if (numTest > 0 || numUnlabelled == 0) 0 else count / 4
    return Pair(count - testShare, if (numTest > 0) numTest else testShare)
}

/** Return the windows for a task that needs no labels. */
private fun Windows.withoutLabels(): Windows {
    val x = concatenate(listOf(trainX, unlabelledX))
    val (cut, _) = splitUnlabelled(numTrain, numTest, numUnlabelled)
    val test = if (numTest > 0) testX else x.take(IntArray(x.rows - cut) { cut + it })
    return Windows(x.take(IntArray(cut) { it }), Tensor.of(LongArray(cut)), test, Tensor.of(LongArray(test.rows)))
}

/**
 * Return these windows in the type that a bundle takes.
 *
 * @throws DataException the bundle takes ids and these are measurements, or an id is not in the
 *   vocabulary
 */
internal fun Windows.fitting(window: Window): Windows {
    val (train, test) = Pair(fitting(trainX, window, "training windows"), fitting(testX, window, "test windows"))
    val unlabelled = fitting(unlabelledX, window, "windows without labels")
    val unchanged = train === trainX && test === testX && unlabelled === unlabelledX
    return if (unchanged) this else Windows(train, trainY, test, testY, unlabelled, names, testBeginsS)
}

/**
 * Return examples (n, window) in the type of [window]. Ids are checked. Whole numbers become
 * measurements if the bundle takes no ids. Shorter windows are padded, if the bundle has [padded]
 * windows.
 *
 * @param origin beginning of the error's text
 * @throws DataException the bundle takes ids and these are measurements, or an id is not in the
 *   vocabulary
 */
internal fun fitting(x: Tensor, window: Window, origin: String): Tensor {
    if (window.vocabulary == 0) {
        if (x.dtype == DType.FLOAT32) return toLength(x, window)
        val ids = x.longs()
        return toLength(Tensor.of(FloatArray(x.size) { ids.get().toFloat() }, x.shape), window)
    }
    if (x.dtype != DType.INT64) {
        if (x.size == 0) return Tensor.allocate(DType.INT64, x.shape)
        throw DataException("$origin: x must hold ids from 0 to ${window.vocabulary - 1}, whole numbers, got $x")
    }
    val ids = x.longs()
    val perWindow = if (x.rows == 0) 1 else x.size / x.rows
    for (i in 0 until x.size) {
        val id = ids.get()
        if (id !in 0 until window.vocabulary) {
            throw DataException("$origin: x must hold ids from 0 to ${window.vocabulary - 1}, got $id in window ${i / perWindow}")
        }
    }
    return x
}

/**
 * Return examples to predict, at least one, as [fitting] makes them for the bundle called [name].
 *
 * @throws DataException they have another shape, there are none, or [fitting] fails
 */
internal fun examples(x: Tensor, window: Window, name: String): Tensor {
    val examples = if (x.shape.isEmpty()) x else fitting(x, window, "examples to predict")
    if (examples.shape.drop(1) == window.shape && x.rows > 0) return examples
    throw DataException("examples: expected at least one of ${window.dtype}${window.shape} for bundle $name, got $x")
}
