package io.shoal.core

import io.shoal.core.wire.Manifest
import io.shoal.core.wire.Window

/**
 * These windows as the task of a bundle takes them: all of them as windows to train and test on where it needs no labels.
 *
 * @throws DataException their labels are not those of the task
 */
internal fun Windows.takenFor(manifest: Manifest): Windows {
    if (!manifest.needsLabels) return if (numUnlabelled == 0 && trainY.shape.size == 1 && testY.shape.size == 1) this else withoutLabels()
    val (train, test) = Pair(fitLabels(trainY, manifest, "train"), fitLabels(testY, manifest, "test"))
    return if (train === trainY && test === testY) this else Windows(trainX, train, testX, test, unlabelledX)
}

/** How many windows [takenFor] has for training, and how many for testing. */
internal fun Windows.countsFor(manifest: Manifest): Pair<Int, Int> =
    if (manifest.needsLabels) Pair(numTrain, numTest) else splitUnlabelled(numTrain, numTest, numUnlabelled)

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
    return if (unchanged) this else Windows(train, trainY, test, testY, unlabelled)
}

/**
 * Examples (n, window) of the type that [window] has: ids are checked, and whole numbers are measurements where no ids are asked for. [origin]
 * begins the error.
 *
 * @throws DataException ids are asked for, and these are measurements, or a value is out of the vocabulary
 */
internal fun fitting(x: Tensor, window: Window, origin: String): Tensor {
    if (window.vocabulary == 0) {
        return if (x.dtype == DType.FLOAT32) x else Tensor.of(FloatArray(x.size).also { made -> x.longs().let { for (i in made.indices) made[i] = it.get().toFloat() } }, x.shape)
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
