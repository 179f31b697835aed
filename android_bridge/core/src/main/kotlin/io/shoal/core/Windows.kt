package io.shoal.core

/**
 * A device's examples: x (n, channels, time) float32 in sensor units, y (n) int64 class numbers.
 *
 * @throws DataException data types, shapes or lengths do not fit each other, or a value is not finite
 */
public class Windows(public val trainX: Tensor, public val trainY: Tensor, public val testX: Tensor, public val testY: Tensor) {
    init {
        check("train", trainX, trainY)
        check("test", testX, testY)
    }

    /** Number of training examples. */
    public val numTrain: Int get() = trainY.size

    /** Number of test examples. */
    public val numTest: Int get() = testY.size

    private fun check(split: String, x: Tensor, y: Tensor) {
        val fits = x.dtype == DType.FLOAT32 && x.shape.size in 3..4 && y.dtype == DType.INT64 && y.shape == listOf(x.shape[0])
        if (!fits) throw DataException("$split windows are x $x and y $y, expected float32[n, channels, time] and int64[n]")
        val numbers = x.floats()
        while (numbers.hasRemaining()) {
            if (!numbers.get().isFinite()) throw DataException("$split windows hold values that are not finite")
        }
    }
}
