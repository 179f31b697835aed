package io.shoal.core

import io.shoal.core.wire.Window

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
