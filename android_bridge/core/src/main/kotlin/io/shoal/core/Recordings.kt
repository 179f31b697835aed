@file:JvmName("Recordings")

package io.shoal.core

/**
 * Samples (n, channels) float32 of sensors in time order, each with its class, or with the labels
 * or quantities in [named].
 */
public class Recording private constructor(
    public val samples: Tensor,
    public val labels: LongArray,
    public val named: NamedLabels?,
    internal val beginS: Double = Double.NaN,
    internal val rateHz: Double = Double.NaN,
) {
    /**
     * Create a recording with class numbers [labels] (n), [NO_LABEL] for a sample without a label.
     */
    public constructor(samples: Tensor, labels: LongArray) : this(samples, labels, null)

    /**
     * Create a recording whose first sample is of [beginS] (Unix time), with [rateHz] samples per
     * second.
     */
    public constructor(samples: Tensor, labels: LongArray, beginS: Double, rateHz: Double) : this(samples, labels, null, beginS, rateHz)

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
 * `edge_client/data/recordings/loading.py` cuts them. A window is cut from consecutive samples of one
 * class; with [steps], or with names or quantities, from all samples. The last quarter of such a
 * run is for testing, and a window's length before it is left out. Of the runs of a class that are
 * too short for both parts, every fourth is for testing. The label of a window is
 *
 * - its class. With [steps] it is the class of each of so many equal parts, [NO_LABEL] for a part
 *   whose samples differ;
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
    val cuts = ArrayList<Cut>()
    val short = HashMap<Long, Int>()
    for (recording in recordings) {
        check(recording, first!!, channels, steps)
        for (run in runs(recording, steps)) cuts += cuts(recording, run, length, stride, steps, short)
    }
    if (cuts.isEmpty()) throw DataException("no recording has $length consecutive samples with the same label, or without labels")
    val unlabelled = cuts.filter { it.label == null }
    val parts = listOf(Part.TRAIN, Part.TEST).map { part -> cuts.filter { it.label != null && it.part == part } }
    val (train, test) = parts.map { Pair(stacked(it, channels, length), labels(it, first?.named, steps)) }
    val beginsS = parts[1].map { it.recording.run { beginS + it.start / rateHz } }.toDoubleArray()
    return Windows(train.first, train.second, test.first, test.second, stacked(unlabelled, channels, length), first?.named?.names.orEmpty(), beginsS)
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

private enum class Part { TRAIN, TEST, NEITHER }

/**
 * Start of a window, and its label, of one number or several; null if it has none. [part] is its
 * part if it has a label.
 */
private class Cut(val recording: Recording, val start: Int, val label: DoubleArray?, val part: Part)

/** Return the ranges of consecutive samples from which windows are cut. */
private fun runs(recording: Recording, steps: Int): List<IntRange> {
    val labels = recording.labels
    if (recording.named != null || steps != 0) return listOf(labels.indices)
    val edges = listOf(0) + (1 until labels.size).filter { labels[it] != labels[it - 1] } + labels.size
    return edges.zipWithNext { begin, end -> begin until end }
}

/** Return the windows of a [run]. [short] counts the runs of each class that are too short for both parts. */
private fun cuts(recording: Recording, run: IntRange, length: Int, stride: Int, steps: Int, short: HashMap<Long, Int>): List<Cut> {
    val (labels, named) = Pair(recording.labels, recording.named)
    val starts = (run.first..run.last + 1 - length step stride).toList()
    if (starts.isEmpty()) return emptyList()
    val quarter = maxOf(1, Math.rint(TEST_SHARE * starts.size).toInt())
    val used = starts.size + Math.floorDiv(-2 * length, stride) + 1 // without those between the parts
    val isShort = used <= quarter
    val tested = maxOf(1, minOf(quarter, (used - 1) / 2)) // fewer than for training
    val key = if (named != null || steps != 0) NO_LABEL else labels[run.first]
    val place = short[key] ?: 0
    if (isShort) short[key] = place + 1
    return starts.mapIndexed { i, start ->
        val label = when {
            named != null -> numbersOf(named, start, length)
            steps != 0 -> DoubleArray(steps) { one(labels, start + it * (length / steps), length / steps) ?: NO_CLASS }
            else -> doubleArrayOf(labels[start].toDouble())
        }
        val part = when {
            isShort -> if (place % EVERY == EVERY - 1) Part.TEST else Part.TRAIN
            i < used - tested -> Part.TRAIN
            i < starts.size - tested -> Part.NEITHER
            else -> Part.TEST
        }
        Cut(recording, start, label.takeUnless { numbers -> if (named != null) numbers.any { it.isNaN() } else numbers.all { it == NO_CLASS } }, part)
    }
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

/** One of so many runs of a class that are too short for both parts is for testing. */
private const val EVERY = 4

/** Minimum share of a window's samples to which a name must apply. */
private const val PRESENT = 0.5
private const val NO_CLASS = NO_LABEL.toDouble()
