@file:JvmName("Recordings")

package io.shoal.core

/**
 * Samples (n, channels) float32 of sensors in time order, each with its class, or with the labels
 * or quantities in [named].
 */
public class Recording private constructor(public val samples: Tensor, public val labels: LongArray, public val named: NamedLabels?) {
    /**
     * Create a recording with class numbers [labels] (n), [NO_LABEL] for a sample without a label.
     */
    public constructor(samples: Tensor, labels: LongArray) : this(samples, labels, null)

    /** Create a recording with labels by name, or with quantities. */
    public constructor(samples: Tensor, named: NamedLabels) : this(samples, LongArray(samples.rows) { NO_LABEL }, named)
}

/**
 * Labels or quantities of n samples, by name. [numbers] (n, names) are in rows, NaN if there is no
 * label. If [areQuantities] is true they are quantities, else 1 for each of the [names] that
 * applies and 0 for the others.
 */
public class NamedLabels(public val names: List<String>, public val areQuantities: Boolean, public val numbers: DoubleArray)

/**
 * Return recordings cut into windows of [length] samples, one every [stride] samples, as
 * `edge_client/data/recordings.py` cuts them. The first 75 % of each recording are for training. No
 * window crosses that point. The label of a window is
 *
 * - its class, if all its samples have the same one. Other windows are left out. With [steps] it is
 *   the class of each of so many equal parts, [NO_LABEL] for a part whose samples differ, and no
 *   window is left out;
 * - for each name 1 if it applies to at least half of the samples that have a label for it, else 0;
 * - the mean of each quantity over the samples that have it.
 *
 * Windows without any label, or without one of the names or quantities, become `unlabelledX`.
 *
 * @throws DataException recordings do not fit each other or the [steps], a value is not finite, or
 *   there is no window to train on
 */
@JvmOverloads
public fun windowsOf(recordings: List<Recording>, length: Int, stride: Int, steps: Int = 0): Windows {
    require(length > 0 && stride > 0) { "length and stride must be above 0, got $length and $stride" }
    if (steps != 0 && (steps < 2 || length % steps != 0)) {
        throw DataException("steps must be a number from 2 that divides the $length samples of a window, got $steps")
    }
    val first = recordings.firstOrNull()
    val channels = first?.samples?.shape?.getOrNull(1) ?: 0
    val parts = listOf(ArrayList<Cut>(), ArrayList())
    for (recording in recordings) {
        check(recording, first!!, channels, steps)
        val count = recording.labels.size
        val end = Math.rint((1 - TEST_SHARE) * count).toInt()
        parts[0] += cuts(recording, 0 until end, length, stride, steps)
        parts[1] += cuts(recording, end until count, length, stride, steps)
    }
    val unlabelled = parts.flatten().filter { it.label == null }
    val labelled = parts.map { part -> part.filter { it.label != null } }
    if (labelled[0].isEmpty() && unlabelled.isEmpty()) throw DataException("no recording has $length consecutive samples with the same label, or without labels")
    val (train, test) = labelled.map { Pair(stacked(it, channels, length), labels(it, first?.named, steps)) }
    return Windows(train.first, train.second, test.first, test.second, stacked(unlabelled, channels, length), first?.named?.names.orEmpty())
}

/** Class number of samples without a label. */
public const val NO_LABEL: Long = -1

private fun check(recording: Recording, first: Recording, channels: Int, steps: Int) {
    val (samples, named) = Pair(recording.samples, recording.named)
    if (samples.dtype != DType.FLOAT32 || samples.shape != listOf(recording.labels.size, channels)) {
        throw DataException("recording of ${recording.labels.size} labels: its samples must be float32[${recording.labels.size}, $channels], got $samples")
    }
    if (named != null && named.numbers.size != samples.rows * named.names.size) {
        throw DataException("recording of ${samples.rows} samples: expected ${samples.rows * named.names.size} numbers for ${named.names}, got ${named.numbers.size}")
    }
    if (columns(named) != columns(first.named)) throw DataException("recordings say ${columns(named)} and ${columns(first.named)} of their samples")
    if (steps != 0 && named != null) throw DataException("windows of steps need a column label with classes, got ${columns(named)}")
}

private fun columns(named: NamedLabels?) = named?.run { names.map { (if (areQuantities) TARGET else NAMED) + it } } ?: listOf(LABEL)

/** Start of a window, and its label, of one number or several; null if it has none. */
private class Cut(val recording: Recording, val start: Int, val label: DoubleArray?)

private fun cuts(recording: Recording, part: IntRange, length: Int, stride: Int, steps: Int): List<Cut> =
    (part.first..part.last + 1 - length step stride).mapNotNull { start ->
        val (labels, named) = Pair(recording.labels, recording.named)
        val label = when {
            named != null -> numbersOf(named, start, length)
            steps != 0 -> DoubleArray(steps) { one(labels, start + it * (length / steps), length / steps) ?: NO_CLASS }
            else -> doubleArrayOf(one(labels, start, length) ?: return@mapNotNull null)
        }
        Cut(recording, start, label.takeUnless { numbers -> if (named != null) numbers.any { it.isNaN() } else numbers.all { it == NO_CLASS } })
    }

/** Return the class that [length] samples from [start] on have, or null if they differ. */
private fun one(labels: LongArray, start: Int, length: Int): Double? =
    labels[start].toDouble().takeIf { (start until start + length).all { labels[it] == labels[start] } }

/** Return a window's value for each name or quantity, NaN if no sample has that label. */
private fun numbersOf(named: NamedLabels, start: Int, length: Int) = DoubleArray(named.names.size) { name ->
    val labelled = (start until start + length).map { named.numbers[it * named.names.size + name] }.filterNot { it.isNaN() }
    val mean = labelled.sum() / labelled.size
    if (named.areQuantities || mean.isNaN()) mean else if (mean >= PRESENT) 1.0 else 0.0
}

private fun labels(cuts: List<Cut>, named: NamedLabels?, steps: Int): Tensor {
    val columns = named?.names?.size ?: steps
    val shape = if (columns == 0) listOf(cuts.size) else listOf(cuts.size, columns)
    val numbers = cuts.flatMap { it.label!!.asList() }
    return if (named?.areQuantities == true) {
        Tensor.of(FloatArray(numbers.size) { numbers[it].toFloat() }, shape)
    } else {
        Tensor.of(LongArray(numbers.size) { numbers[it].toLong() }, shape)
    }
}

/** Return the windows (n, channels, length). */
private fun stacked(cuts: List<Cut>, channels: Int, length: Int): Tensor {
    val windows = Tensor.allocate(DType.FLOAT32, listOf(cuts.size, channels, length))
    val target = windows.floats()
    for (cut in cuts) {
        val source = cut.recording.samples.floats()
        for (channel in 0 until channels) {
            for (time in 0 until length) target.put(source.get((cut.start + time) * channels + channel))
        }
    }
    return windows
}

private const val TEST_SHARE = 0.25

/** Minimum share of a window's samples to which a name must apply. */
private const val PRESENT = 0.5
private const val NO_CLASS = NO_LABEL.toDouble()
