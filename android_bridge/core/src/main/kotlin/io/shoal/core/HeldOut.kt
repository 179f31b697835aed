package io.shoal.core

import io.shoal.core.random.Generator
import java.util.zip.CRC32

/** How many training windows a share holds out: of one above 0 at least two, as far as there are so many. */
internal fun numHeldOut(numExamples: Int, share: Double): Int =
    if (share > 0) minOf(numExamples, maxOf(2, Math.rint(share * numExamples).toInt())) else 0

/** Which training windows are held out: the same ones each time. */
internal fun heldOut(numExamples: Int, share: Double, deviceId: String): BooleanArray {
    val mask = BooleanArray(numExamples)
    if (share > 0) {
        val order = Generator(checksum(deviceId), HELD_OUT).permutation(numExamples)
        order.take(numHeldOut(numExamples, share)).forEach { mask[it] = true }
    }
    return mask
}

/** The CRC-32 of a text, by which a device's id goes into seeds. */
internal fun checksum(text: String): Long = CRC32().apply { update(text.toByteArray()) }.value

private const val HELD_OUT = 0x401DL
