package io.shoal.core

import io.shoal.core.wire.Window

/**
 * Examples of a device.
 *
 * x (n, channels, time) is float32 in sensor units, or int64 ids of words or events. y is one of:
 * (n) int64 class numbers; (n, steps) int64 class numbers of the steps of a window, -1 for a step
 * without a label; (n, names) int64, 1 for each name that applies and 0 for the others; (n,
 * quantities) float32.
 *
 * @property unlabelledX windows without labels, shaped like those of [trainX]; it may be empty
 * @property names names of labels or quantities, in the order of their columns, if the data have
 *   them
 * @param testBeginsS Unix times (n) of the first samples of the test windows; empty or not a
 *   number if they are not known
 * @throws DataException data types, shapes or lengths do not fit each other, or a value is not
 *   finite
 */
public class Windows @JvmOverloads constructor(
    public val trainX: Tensor,
    public val trainY: Tensor,
    public val testX: Tensor,
    public val testY: Tensor,
    public val unlabelledX: Tensor = trainX.take(IntArray(0)),
    public val names: List<String> = emptyList(),
    internal val testBeginsS: DoubleArray = DoubleArray(0),
) {
    init {
        check("train", trainX, trainY)
        check("test", testX, testY)
        if (unlabelledX.dtype != trainX.dtype || unlabelledX.shape.size != trainX.shape.size || unlabelledX.shape.drop(1) != trainX.shape.drop(1)) {
            throw DataException("windows without labels must be shaped like those for training, $trainX; got $unlabelledX")
        }
        checkFinite("unlabelled", unlabelledX)
    }

    /** Number of training examples. */
    public val numTrain: Int get() = trainY.rows

    /** Number of test examples. */
    public val numTest: Int get() = testY.rows

    /** Number of windows without labels. */
    public val numUnlabelled: Int get() = unlabelledX.rows

    /** Training windows of this device, or if there are none, its other windows. */
    internal val some: Tensor get() = listOf(trainX, testX, unlabelledX).firstOrNull { it.rows > 0 } ?: trainX

    /**
     * Return the first windows of [some], at most [most]; one of zeros if the device has no
     * windows.
     */
    internal fun some(most: Int, window: Window): Tensor =
        if (some.rows > 0) some.take(IntArray(minOf(some.rows, most)) { it }) else Tensor.allocate(window.dtype, listOf(1) + window.shape)

    private fun check(split: String, x: Tensor, y: Tensor) {
        val labelled = y.shape.size in (if (y.dtype == DType.FLOAT32) 2..2 else 1..2) && y.dtype in TYPES && y.shape[0] == x.shape.firstOrNull()
        val fits = x.dtype == trainX.dtype && x.dtype in TYPES && x.shape.size in 3..4 && labelled
        if (!fits) {
            val labels = "int64[n], int64[n, steps], int64[n, names] or float32[n, quantities]"
            throw DataException("$split windows must be x float32 or int64[n, channels, time] and y $labels; got x $x and y $y")
        }
        checkFinite(split, x)
    }

    private fun checkFinite(split: String, x: Tensor) {
        if (x.dtype != DType.FLOAT32) return
        val numbers = x.floats()
        while (numbers.hasRemaining()) {
            if (!numbers.get().isFinite()) throw DataException("$split windows must be finite")
        }
    }

    private companion object {
        /** Types of values: measurements and quantities, ids and classes. */
        val TYPES = setOf(DType.FLOAT32, DType.INT64)
    }
}
