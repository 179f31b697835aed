@file:JvmName("Recordings")

package io.shoal.core

/** A sensor's samples in time order, (n, channels) float32, and what is said of each: its class, or [named] labels or quantities. */
public class Recording private constructor(public val samples: Tensor, public val labels: LongArray, public val named: NamedLabels?) {
    /** [labels] are class numbers (n), [NO_LABEL] where nobody has said it. */
    public constructor(samples: Tensor, labels: LongArray) : this(samples, labels, null)

    /** Samples that have labels by name, or quantities. */
    public constructor(samples: Tensor, named: NamedLabels) : this(samples, LongArray(samples.rows) { NO_LABEL }, named)
}

/**
 * Labels or quantities of n samples, by name: [numbers] (n, names), row by row, NaN where nothing is said. They are quantities where
 * [areQuantities], else 1 for each of the [names] that is there and 0 for others.
 */
public class NamedLabels(public val names: List<String>, public val areQuantities: Boolean, public val numbers: DoubleArray)

/**
 * Cuts recordings into windows of [length] samples, one every [stride] samples, as `edge_client/data/recordings.py` does: the first
 * 75 % of each recording are for training; windows are cut on either side of that point, so that none is shared. The label of a window is
 *
 * - its class, where all its samples have the same; other windows are left out. With [steps] it is the class of each of so many equal parts,
 *   [NO_LABEL] of one whose samples differ, and no window is left out;
 * - of each name 1 where it is there for at least half of the samples of which it is said, else 0;
 * - the mean of each quantity over the samples of which it is said.
 *
 * Windows of whose samples nothing is said, or not every name or quantity, of either side, are those of `unlabelledX`.
 *
 * @throws DataException recordings that do not fit each other or the [steps], a value that is not finite, or no window but for testing
 */
@JvmOverloads
public fun windowsOf(recordings: List<Recording>, length: Int, stride: Int, steps: Int = 0): Windows {
    require(length > 0 && stride > 0) { "windows of $length samples every $stride" }
    if (steps != 0 && (steps < 2 || length % steps != 0)) {
        throw DataException("windows of $length samples in $steps steps: expected a number from 2 that divides them")
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
    if (labelled[0].isEmpty() && unlabelled.isEmpty()) throw DataException("no recording has $length samples in a row with one label, or without")
    val (train, test) = labelled.map { Pair(stacked(it, channels, length), labels(it, first?.named, steps)) }
    return Windows(train.first, train.second, test.first, test.second, stacked(unlabelled, channels, length), first?.named?.names.orEmpty())
}

/** The class number of samples that nobody has labelled. */
public const val NO_LABEL: Long = -1

private fun check(recording: Recording, first: Recording, channels: Int, steps: Int) {
    val (samples, named) = Pair(recording.samples, recording.named)
    if (samples.dtype != DType.FLOAT32 || samples.shape != listOf(recording.labels.size, channels)) {
        throw DataException("a recording of ${recording.labels.size} labels has samples $samples, expected float32[${recording.labels.size}, $channels]")
    }
    if (named != null && named.numbers.size != samples.rows * named.names.size) {
        throw DataException("a recording of ${samples.rows} samples has ${named.numbers.size} numbers for ${named.names}")
    }
    if (columns(named) != columns(first.named)) throw DataException("recordings say ${columns(named)} and ${columns(first.named)} of their samples")
    if (steps != 0 && named != null) throw DataException("steps have classes, expected a column label, and there are ${columns(named)}")
}

private fun columns(named: NamedLabels?) = named?.run { names.map { (if (areQuantities) TARGET else NAMED) + it } } ?: listOf(LABEL)

/** Where a window begins, and its label, of one number or several; null where it has none. */
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

/** The class that [length] samples from [start] on have; null where they differ. */
private fun one(labels: LongArray, start: Int, length: Int): Double? =
    labels[start].toDouble().takeIf { (start until start + length).all { labels[it] == labels[start] } }

/** Each name or quantity of such a window; NaN for one of which nothing is said. */
private fun numbersOf(named: NamedLabels, start: Int, length: Int) = DoubleArray(named.names.size) { name ->
    val known = (start until start + length).map { named.numbers[it * named.names.size + name] }.filterNot { it.isNaN() }
    val mean = known.sum() / known.size
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

/** The windows (n, channels, length). */
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

/** A name that is there for so much of a window is there. */
private const val PRESENT = 0.5
private const val NO_CLASS = NO_LABEL.toDouble()
