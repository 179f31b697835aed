package io.shoal.core

import kotlin.math.PI
import kotlin.math.abs
import kotlin.math.ln
import kotlin.math.min
import kotlin.math.sqrt

/**
 * Whether a device's data have moved since its last survey (`edge_client/live/drift.py`, which says why and how far). An app keeps the
 * [features] of the windows that it had when it was surveyed, and says in [Health.moved] whether those since then have moved against them.
 */
@InternalShoalApi
public object Drift {
    /** Two sets of windows that are farther apart are not one device's data as they were. */
    public const val MOVED: Double = 0.02

    /** Windows that a set needs to be compared. */
    public const val FEWEST: Int = 64

    /** What the windows of x (n, channels, time) are known by: of each, the mean and the logarithm of the deviation of each channel. */
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

    /** How far two sets of windows, given by their features, are apart; about 0 where only chance is between them. */
    public fun distance(one: List<DoubleArray>, other: List<DoubleArray>): Double {
        val width = one.first().size
        val differences = (0 until width).sumOf { feature ->
            val a = DoubleArray(one.size) { one[it][feature] }.apply { sort() }
            val b = DoubleArray(other.size) { other[it][feature] }.apply { sort() }
            (a.sumOf { abs(share(a, it) - share(b, it)) } + b.sumOf { abs(share(a, it) - share(b, it)) }) / (a.size + b.size)
        }
        return differences / width - CHANCE * sqrt(1.0 / one.size + 1.0 / other.size)
    }

    /** Whether two sets are too far apart for one device whose data stay what they are. Sets that are too small have not moved. */
    public fun hasMoved(before: List<DoubleArray>, now: List<DoubleArray>): Boolean =
        min(before.size, now.size) >= FEWEST && before.first().size == now.first().size && distance(before, now) > MOVED

    /** The share of sorted numbers that are not above [at]. */
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
