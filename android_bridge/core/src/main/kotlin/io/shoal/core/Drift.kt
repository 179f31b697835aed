package io.shoal.core

import kotlin.math.PI
import kotlin.math.abs
import kotlin.math.ln
import kotlin.math.min
import kotlin.math.sqrt

/**
 * Test if a device's data have moved since its last survey (`edge_client/live/drift.py` gives the
 * reason and the threshold). An app stores the [features] of the windows that it had at the survey,
 * and reports in [Health.moved] if the windows since then have moved against them.
 */
@InternalShoalApi
public object Drift {
    /** Largest distance between two sets of windows whose data have not moved. */
    public const val MOVED: Double = 0.02

    /** Minimum number of windows in a set that can be compared. */
    public const val FEWEST: Int = 64

    /**
     * Return the features of each window of x (n, channels, time): mean and logarithm of the
     * standard deviation of each channel.
     */
    public fun features(x: Tensor): List<DoubleArray> {
        val (count, channels) = x.shape
        val length = x.size / maxOf(1, count * channels)
        val values = x.floats()
        return List(count) {
            val row = DoubleArray(2 * channels)
            for (channel in 0 until channels) {
                val window = DoubleArray(length) { values.get().toDouble() }
                val mean = window.sum() / length
                row[channel] = mean
                row[channels + channel] = ln(sqrt(window.sumOf { (it - mean) * (it - mean) } / length) + 1e-6)
            }
            row
        }
    }

    /**
     * Return the distance between two sets of windows, given by their features. It is about 0 if
     * they differ by chance only.
     */
    public fun distance(one: List<DoubleArray>, other: List<DoubleArray>): Double {
        val width = one.first().size
        val differences = (0 until width).sumOf { feature ->
            val a = DoubleArray(one.size) { one[it][feature] }.apply { sort() }
            val b = DoubleArray(other.size) { other[it][feature] }.apply { sort() }
            (a.sumOf { abs(share(a, it) - share(b, it)) } + b.sumOf { abs(share(a, it) - share(b, it)) }) / (a.size + b.size)
        }
        return differences / width - CHANCE * sqrt(1.0 / one.size + 1.0 / other.size)
    }

    /**
     * Return true if the data have moved between two sets of windows. Sets that are too small have
     * not moved.
     */
    public fun hasMoved(before: List<DoubleArray>, now: List<DoubleArray>): Boolean =
        min(before.size, now.size) >= FEWEST && before.first().size == now.first().size && distance(before, now) > MOVED

    /** Return the share of sorted numbers that are not above [at]. */
    private fun share(sorted: DoubleArray, at: Double): Double {
        var low = 0
        var high = sorted.size
        while (low < high) {
            val middle = (low + high) / 2
            if (sorted[middle] <= at) low = middle + 1 else high = middle
        }
        return low.toDouble() / sorted.size
    }

    private val CHANCE = sqrt(2 / PI) * PI / 8
}
