package io.shoal.core

import java.util.zip.CRC32

/** Windows held out, at least: fewer say nothing of a model, and are worth more as windows to train on. */
private const val FEWEST = 3

/** Windows of a run, at most. They follow each other: neighbours often overlap, and each end of a run tells of what lies beyond it. */
private const val RUN = 8

/** Where nothing says which windows are alike, a run has at most such a part of all: what a person did for longer is in both sides. */
private const val PARTS = 12

/** How many training windows a share holds out: none where these are fewer than [FEWEST]. */
internal fun numHeldOut(numExamples: Int, share: Double): Int = Math.floor(numExamples * share).toInt().takeIf { it >= FEWEST } ?: 0

/**
 * Which training windows with the labels [y] a share holds out, the same ones each time (`wire/SPEC.md`, 'Held out'). Each class gives its
 * part, and as far as others can give in its place it keeps a window to train on; labels that are no whole numbers count as one class. The windows
 * of a class are taken in runs, as many windows before the first as behind the last.
 */
internal fun heldOut(y: Tensor, share: Double): BooleanArray {
    val numExamples = y.rows
    val mask = BooleanArray(numExamples)
    val count = numHeldOut(numExamples, share).toLong()
    if (count == 0L) return mask
    val classes = classesOf(y)
    val places = classes.indices.groupBy { classes[it] }.toSortedMap().values
    val canGive = places.map { it.size - 1 }
    val weights = if (canGive.sum() >= count) canGive else places.map { it.size }
    val longest = if (places.size > 1) RUN else (numExamples / PARTS).coerceIn(1, RUN)
    val total = weights.sum().toLong()
    var before = 0L
    for ((own, weight) in places.zip(weights)) {
        val given = (before + weight) * count / total - before * count / total
        for (place in inRuns(own.size, given.toInt(), longest)) mask[own[place]] = true
        before += weight
    }
    return mask
}

/** The class of each window: of steps the one that most of those with a label have, -1 where none has one. */
private fun classesOf(y: Tensor): LongArray {
    if (y.dtype != DType.INT64) return LongArray(y.rows)
    val (labels, width) = Pair(y.toLongArray(), y.shape.drop(1).fold(1, Math::multiplyExact))
    return LongArray(y.rows) { row ->
        val counts = labels.slice(row * width until (row + 1) * width).filter { it >= 0 }.groupingBy { it }.eachCount()
        if (width == 1) labels[row] else counts.entries.maxWithOrNull(compareBy<Map.Entry<Long, Int>> { it.value }.thenByDescending { it.key })?.key ?: -1L
    }
}

/** So many places of the first [of]: runs of at most [longest], each in the middle of its part. */
private fun inRuns(of: Int, count: Int, longest: Int): List<Int> {
    val runs = (count + longest - 1) / longest
    return (0 until runs).flatMap { run -> (run * count / runs until (run + 1) * count / runs).map { it + (2 * run + 1) * (of - count) / (2 * runs) } }
}

/** The CRC-32 of a text, by which a device's id goes into seeds. */
internal fun checksum(text: String): Long = CRC32().apply { update(text.toByteArray()) }.value
