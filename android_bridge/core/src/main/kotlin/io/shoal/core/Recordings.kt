package io.shoal.core

/** A sensor's samples in time order, (n, channels) float32, and the class number of each, (n) int64; [NO_LABEL] where nobody has said it. */
public class Recording(public val samples: Tensor, public val labels: LongArray)

/**
 * Cuts recordings into windows of [length] samples, one every [stride] samples, as `edge_client/adapters/windows.py` does: the first
 * 75 % of each recording are for training; windows are cut on either side of that point, so that none is shared, and only where the label
 * stays the same. Windows without a label, of either side, are those of `unlabelledX`.
 *
 * @throws DataException recordings that do not fit each other, a value that is not finite, or no window but for testing
 */
public fun windowsOf(recordings: List<Recording>, length: Int, stride: Int): Windows {
    require(length > 0 && stride > 0) { "windows of $length samples every $stride" }
    val channels = recordings.firstOrNull()?.samples?.shape?.getOrNull(1) ?: 0
    val parts = listOf(ArrayList<Cut>(), ArrayList())
    for (recording in recordings) {
        val (samples, labels) = Pair(recording.samples, recording.labels)
        if (samples.dtype != DType.FLOAT32 || samples.shape != listOf(labels.size, channels)) {
            throw DataException("a recording of ${labels.size} labels has samples $samples, expected float32[${labels.size}, $channels]")
        }
        val end = Math.rint((1 - TEST_SHARE) * labels.size).toInt()
        parts[0] += cuts(recording, 0 until end, length, stride)
        parts[1] += cuts(recording, end until labels.size, length, stride)
    }
    val unlabelled = parts.flatten().filter { it.label == NO_LABEL }
    val labelled = parts.map { part -> part.filter { it.label != NO_LABEL } }
    if (labelled[0].isEmpty() && unlabelled.isEmpty()) throw DataException("no recording has $length samples in a row with one label, or without")
    val (train, test) = labelled.map { Pair(stacked(it, channels, length), Tensor.of(LongArray(it.size) { i -> it[i].label })) }
    return Windows(train.first, train.second, test.first, test.second, stacked(unlabelled, channels, length))
}

/** The class number of samples that nobody has labelled. */
public const val NO_LABEL: Long = -1

/** Where a window begins, and its label. */
private class Cut(val recording: Recording, val start: Int) {
    val label get() = recording.labels[start]
}

private fun cuts(recording: Recording, part: IntRange, length: Int, stride: Int): List<Cut> =
    (part.first..part.last + 1 - length step stride)
        .filter { start -> (start until start + length).all { recording.labels[it] == recording.labels[start] } }
        .map { Cut(recording, it) }

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
