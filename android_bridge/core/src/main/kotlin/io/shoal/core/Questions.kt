package io.shoal.core

import java.security.MessageDigest
import kotlin.math.abs
import kotlin.math.floor
import kotlin.math.ln
import kotlin.math.max

private const val DAY_S = 24 * 3600.0

/** Minimum duration of a long stretch, which a person remembers (s). */
private const val LEAST_S = 60.0

/** Maximum number of stretches that are stored for a draw, the newest. */
private const val MOST_QUESTIONS = 100

/**
 * Windows in a row whose filtered answers have the same class, a [number]. [beginS] and [lastS] are
 * the begins of the first and the last one.
 */
@InternalShoalApi
public class Activity(public val beginS: Double, public val lastS: Double, public val windows: Long, public val number: Int)

/**
 * Stretch of time (Unix time, s) to be labelled, of so many [windows], and the class that it
 * probably has (`edge_client/core/questions.py`).
 */
@InternalShoalApi
public class Question(public val beginS: Double, public val endS: Double, public val windows: Long, public val label: String)

/** Long [stretches], the oldest first, and the time of the last question, null before the first. */
@InternalShoalApi
public class Questions(public val stretches: List<Question> = emptyList(), public val lastS: Double? = null) {
    /** Return these with a newer stretch. */
    internal fun add(question: Question): Questions = Questions((stretches + question).takeLast(MOST_QUESTIONS), lastS)
}

/**
 * Return the question about an [activity] of a stream with these [sums], whose windows last
 * [lengthS]; null if it is not long.
 */
internal fun questionOf(activity: Activity, sums: StreamSums, classes: List<String>, lengthS: Double): Question? {
    val endS = activity.lastS + lengthS
    val stay = sums.stay(classes.size)
    val isLong = stay > 1.0 / classes.size && activity.windows >= 1 / (1 - stay)
    if (!isLong || endS - activity.beginS < LEAST_S) return null
    return Question(max(activity.beginS, endS - DAY_S), endS, activity.windows, classes[activity.number])
}

/**
 * Return the question to ask at [nowS], or null. [stretches] have no label yet; [lastS] is the time
 * of the last question.
 */
internal fun dueQuestion(stretches: Sequence<Question>, lastS: Double?, mostADay: Int, nowS: Double): Question? {
    if (mostADay < 1 || (lastS != null && abs(nowS - lastS) < DAY_S / mostADay)) return null
    val sinceS = if (lastS != null && lastS < nowS) max(nowS - DAY_S, lastS) else nowS - DAY_S
    return stretches.filter { sinceS < it.endS && it.endS <= nowS }.maxByOrNull(::draw)
}

/** Return the logarithm of a number from 0 to 1, by a hash, to the power of one divided by the windows. */
private fun draw(question: Question): Double {
    val beginMs = floor(1000 * question.beginS + 0.5).toLong()
    val hash = MessageDigest.getInstance("SHA-256").digest("$beginMs:${question.windows}".toByteArray())
    val drawn = hash.take(8).fold(0L) { number, byte -> (number shl 8) or (byte.toLong() and 0xff) }
    return ln(((drawn ushr 11) + 0.5) / (1L shl 53)) / question.windows
}
