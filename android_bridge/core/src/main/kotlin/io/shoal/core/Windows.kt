package io.shoal.core

import io.shoal.core.wire.Window

/**
 * A device's examples: x (n, channels, time) float32 in sensor units, or int64 ids of words or events; y (n) int64 class numbers, or (n, steps) of
 * the steps of a window, -1 for one without a label, or (n, names) int64 of several labels, 1 for each name that is there and 0 for others, or
 * (n, quantities) float32. [unlabelledX] holds windows that nobody has labelled, shaped as
 * those of [trainX]; empty where there are none. [names] are those of several labels or of quantities, in the order of their columns, where
 * the data say them.
 *
 * @throws DataException data types, shapes or lengths do not fit each other, or a value is not finite
 */
public class Windows @JvmOverloads constructor(
    public val trainX: Tensor,
    public val trainY: Tensor,
    public val testX: Tensor,
    public val testY: Tensor,
    public val unlabelledX: Tensor = trainX.take(IntArray(0)),
    public val names: List<String> = emptyList(),
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
    public val numTrain: Int get() = trainY.rows

    /** Number of test examples. */
    public val numTest: Int get() = testY.rows

    /** Number of windows without labels. */
    public val numUnlabelled: Int get() = unlabelledX.rows

    /** Some windows of this device, with labels or without: of those for training where there are any, else of those that there are. */
    internal val some: Tensor get() = listOf(trainX, testX, unlabelledX).firstOrNull { it.rows > 0 } ?: trainX

    /** The first windows of [some], at most so many; one of zeros where the device has none. */
    internal fun some(most: Int, window: Window): Tensor =
        if (some.rows > 0) some.take(IntArray(minOf(some.rows, most)) { it }) else Tensor.allocate(window.dtype, listOf(1) + window.shape)

    private fun check(split: String, x: Tensor, y: Tensor) {
        val labelled = y.shape.size in (if (y.dtype == DType.FLOAT32) 2..2 else 1..2) && y.dtype in TYPES && y.shape[0] == x.shape.firstOrNull()
        val fits = x.dtype == trainX.dtype && x.dtype in TYPES && x.shape.size in 3..4 && labelled
        if (!fits) {
            val labels = "int64[n], int64[n, steps], int64[n, names] or float32[n, quantities]"
            throw DataException("$split windows are x $x and y $y, expected float32 or int64[n, channels, time] and $labels")
        }
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
        /** Types of values: measurements and quantities, ids and classes. */
        val TYPES = setOf(DType.FLOAT32, DType.INT64)
    }
}
