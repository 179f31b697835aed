package io.shoal.core

import java.util.zip.CRC32

/** Windows of a block, at most: windows that follow each other often overlap, and one side of the cut would tell of the other. */
private const val BLOCK = 8

/** How many training windows a share holds out: of one above 0 at least two, as far as there are so many. */
internal fun numHeldOut(numExamples: Int, share: Double): Int = heldOut(numExamples, share).count { it }

/**
 * Which training windows are held out, the same ones each time: of the blocks of windows that follow each other, evenly spread ones that
 * make up the [share]; the last two windows where these are fewer than two (`wire/SPEC.md`, 'Held out').
 */
internal fun heldOut(numExamples: Int, share: Double): BooleanArray {
    val size = (numExamples / 12).coerceIn(1, BLOCK)
    val mask = BooleanArray(numExamples) { at ->
        val block = at / size
        Math.floor((block + 1) * share) > Math.floor(block * share)
    }
    if (share > 0 && mask.count { it } < 2) mask.fill(true, maxOf(0, numExamples - 2), numExamples)
    return mask
}

/** The CRC-32 of a text, by which a device's id goes into seeds. */
internal fun checksum(text: String): Long = CRC32().apply { update(text.toByteArray()) }.value
