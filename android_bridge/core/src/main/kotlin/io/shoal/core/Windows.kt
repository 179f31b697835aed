package io.shoal.core

import io.shoal.core.wire.Window

/**
 * A device's examples: x (n, channels, time) float32 in sensor units, or int64 ids of words or events; y (n) int64 class numbers. [unlabelledX] holds windows that nobody has
 * labelled, shaped as those of [trainX]; empty where there are none.
 *
 * @throws DataException data types, shapes or lengths do not fit each other, or a value is not finite
 */
public class Windows @JvmOverloads constructor(
    public val trainX: Tensor,
    public val trainY: Tensor,
    public val testX: Tensor,
    public val testY: Tensor,
    public val unlabelledX: Tensor = trainX.take(IntArray(0)),
) {
    init {
        check("train", trainX, trainY)
        check("test", testX, testY)
        if (unlabelledX.dtype != trainX.dtype || unlabelledX.shape.size != trainX.shape.size || unlabelledX.shape.drop(1) != trainX.shape.drop(1)) {
            throw DataException("windows without labels are x $unlabelledX, expected them as those for training, $trainX")
        }
        checkFinite("unlabelled", unlabelledX)
    }

    /** Number of training examples. */
    public val numTrain: Int get() = trainY.size

    /** Number of test examples. */
    public val numTest: Int get() = testY.size

    /** Number of windows without labels. */
    public val numUnlabelled: Int get() = unlabelledX.rows

    /** Some windows of this device, with labels or without: of those for training where there are any, else of those that there are. */
    internal val some: Tensor get() = listOf(trainX, testX, unlabelledX).firstOrNull { it.rows > 0 } ?: trainX

    /** The first windows of [some], at most so many; one of zeros where the device has none. */
    internal fun some(most: Int, window: Window): Tensor =
        if (some.rows > 0) some.take(IntArray(minOf(some.rows, most)) { it }) else Tensor.allocate(window.dtype, listOf(1) + window.shape)

    private fun check(split: String, x: Tensor, y: Tensor) {
        val fits = x.dtype == trainX.dtype && x.dtype in TYPES && x.shape.size in 3..4 && y.dtype == DType.INT64 && y.shape == listOf(x.shape[0])
        if (!fits) throw DataException("$split windows are x $x and y $y, expected float32 or int64[n, channels, time] and int64[n]")
        checkFinite(split, x)
    }

    private fun checkFinite(split: String, x: Tensor) {
        if (x.dtype != DType.FLOAT32) return
        val numbers = x.floats()
        while (numbers.hasRemaining()) {
            if (!numbers.get().isFinite()) throw DataException("$split windows hold values that are not finite")
        }
    }

    private companion object {
        /** Types of values: measurements, and ids. */
        val TYPES = setOf(DType.FLOAT32, DType.INT64)
    }
}
