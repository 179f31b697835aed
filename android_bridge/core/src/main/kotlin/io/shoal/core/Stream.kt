package io.shoal.core

import kotlin.math.abs
import kotlin.math.max
import kotlin.math.min
import kotlin.math.sqrt

/** Number of windows by chance beside the two sums. */
private const val BEGIN_WINDOWS = 10.0

/** Maximum of the two sums together. */
private const val MOST_WINDOWS = 1000.0

/** Number of standard errors by which [StreamSums.stay] has to be above chance, else it is chance. */
private const val ERRORS = 2.0

/** Expected [stays] and [changes] between windows of a [bundle] (`edge_client/core/stream.py`). */
@InternalShoalApi
public class StreamSums(public val bundle: String, public val stays: Double = 0.0, public val changes: Double = 0.0) {
    /** Return the probability that the next window has the same class, at least chance. */
    public fun stay(classes: Int): Double {
        val windows = stays + changes + BEGIN_WINDOWS
        val stay = (stays + BEGIN_WINDOWS / classes) / windows
        val error = sqrt(stay * (1 - stay) / windows)
        return if (stay - ERRORS * error > 1.0 / classes) stay else 1.0 / classes
    }

    /** Return the mean number of windows of an activity, or null before enough windows are known. */
    public fun activity(classes: Int): Double? = if (stays + changes < BEGIN_WINDOWS) null else 1 / (1 - stay(classes))

    /** Return the sums after one more window, whose class has stayed with the probability [stayed]. */
    internal fun add(stayed: Double): StreamSums {
        val scale = MOST_WINDOWS / max(MOST_WINDOWS, stays + changes + 1)
        return StreamSums(bundle, scale * (stays + stayed), scale * (changes + 1 - stayed))
    }
}

/**
 * Filter over the model's probabilities for a stream of windows. It starts anew at each gap.
 *
 * @property sums sums of all windows so far; at first those of earlier streams of the same bundle
 * @param stepS seconds from window to window where there is no gap
 * @param onActivity called with each activity that is over
 */
@InternalShoalApi
public class StreamFilter(sums: StreamSums, private val stepS: Double, private val onActivity: (Activity) -> Unit = {}) {
    public var sums: StreamSums = sums
        private set
    private var last: DoubleArray? = null
    private var nextS = Double.POSITIVE_INFINITY
    private var activity: Activity? = null

    /**
     * Return the answer to a window that begins at [beginS], by the model's probabilities [p] for
     * it. If the model has none, that is returned, and the stream starts anew.
     */
    public fun answer(beginS: Double, p: FloatArray): FloatArray {
        val total = p.sumOf { it.toDouble() }
        val hasAnswer = total > 0 && total < Double.POSITIVE_INFINITY
        val before = last.takeIf { abs(beginS - nextS) < stepS / 2 }
        last = null
        if (before == null || !hasAnswer) follow(null)
        if (!hasAnswer) return p
        val own = scaled(DoubleArray(p.size) { p[it].toDouble() * p[it] })
        var filtered = own
        if (before != null) {
            val stay = sums.stay(p.size)
            val change = (1 - stay) / max(1, p.size - 1)
            val joint = DoubleArray(p.size) { (change + (stay - change) * before[it]) * own[it] }
            val stayed = stay * own.indices.sumOf { before[it] * own[it] } / joint.sum()
            sums = sums.add(min(1.0, stayed))
            filtered = scaled(joint)
        }
        last = filtered
        nextS = beginS + stepS
        val number = filtered.indices.maxByOrNull { filtered[it] }!!
        val open = activity?.takeIf { it.number == number }
        follow(Activity(open?.beginS ?: beginS, beginS, 1 + (open?.windows ?: 0), number))
        val roots = scaled(DoubleArray(p.size) { sqrt(filtered[it]) })
        return FloatArray(p.size) { roots[it].toFloat() }
    }

    /** Note the present activity, null if there is none. */
    private fun follow(next: Activity?) {
        val before = activity
        activity = next
        if (before != null && before.number != next?.number) onActivity(before)
    }

    private fun scaled(p: DoubleArray): DoubleArray = p.sum().let { sum -> DoubleArray(p.size) { p[it] / sum } }
}
