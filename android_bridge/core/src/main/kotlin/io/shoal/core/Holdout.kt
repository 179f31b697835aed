package io.shoal.core

import java.util.zip.CRC32

/**
 * Minimum number of windows held out. Fewer say little about a model, and are worth more as
 * training windows.
 */
private const val FEWEST = 3

/**
 * Maximum number of windows in a row. Neighbours often overlap, and windows beside a gap reveal
 * those in it.
 */
private const val RUN = 8

/**
 * Minimum number of rows in all windows where no labels say which are alike:
 * otherwise an activity that lasts longer would lie on both sides.
 */
private const val PARTS = 12

/** Return the number of training windows that a share holds out: 0 if that is below [FEWEST]. */
internal fun numHeldOut(numExamples: Int, share: Double): Int = Math.floor(numExamples * share).toInt().takeIf { it >= FEWEST } ?: 0

/**
 * Return the training windows with the labels [y] that a share holds out, the same ones each time
 * (`wire/SPEC.md`, 'Held out'). Each class gives its part, and keeps a window to train on if others
 * can give in its place. Labels that are not whole numbers count as one class. The windows of a
 * class are taken in rows, with as many windows before the first row as after the last.
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
    for ((classPlaces, weight) in places.zip(weights)) {
        val quota = (before + weight) * count / total - before * count / total
        for (place in inRuns(classPlaces.size, quota.toInt(), longest)) mask[classPlaces[place]] = true
        before += weight
    }
    return mask
}

/**
 * Return the class of each window. In a task of steps it is the most frequent class of its labelled
 * steps, or -1 if no step has a label.
 */
private fun classesOf(y: Tensor): LongArray {
    if (y.dtype != DType.INT64) return LongArray(y.rows)
    val (labels, width) = Pair(y.toLongArray(), y.shape.drop(1).fold(1, Math::multiplyExact))
    return LongArray(y.rows) { row ->
        val counts = labels.slice(row * width until (row + 1) * width).filter { it >= 0 }.groupingBy { it }.eachCount()
        if (width == 1) labels[row] else counts.entries.maxWithOrNull(compareBy<Map.Entry<Long, Int>> { it.value }.thenByDescending { it.key })?.key ?: -1L
    }
}

/**
 * Return [count] of the first [of] places, in rows of at most [longest], each in the middle of its
 * part.
 */
private fun inRuns(of: Int, count: Int, longest: Int): List<Int> {
    val runs = (count + longest - 1) / longest
    return (0 until runs).flatMap { run -> (run * count / runs until (run + 1) * count / runs).map { it + (2 * run + 1) * (of - count) / (2 * runs) } }
}

/** Return the CRC-32 of a text, by which a device's id enters seeds. */
internal fun checksum(text: String): Long = CRC32().apply { update(text.toByteArray()) }.value
