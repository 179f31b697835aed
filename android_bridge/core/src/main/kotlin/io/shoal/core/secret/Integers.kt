package io.shoal.core.secret

import java.nio.ByteBuffer
import java.nio.ByteOrder
import javax.crypto.Cipher
import javax.crypto.spec.IvParameterSpec
import javax.crypto.spec.SecretKeySpec
import kotlin.math.floor

/** Number of random bytes of a seed of masks. */
internal const val SEED_BYTES = 32

/**
 * Fixed point for sums over at most [most] devices: unsigned integers of [bits], 16 or 32, that wrap
 * (`wire/SPEC.md`, 'Secret sums'). An integer is the low bits of an Int.
 */
internal class FixedPoint(val bits: Int, most: Long) {
    /** Largest absolute value of an integer before it is summed. */
    private val bound = (((1L shl (bits - 1)) - 1) / most).toDouble()

    /**
     * Return the integers of numbers, rounded up or down by [uniform], numbers drawn from [0, 1).
     * Numbers beyond [clip] are cut, and those that are not finite become 0.
     */
    fun encode(numbers: FloatArray, clip: Double, uniform: DoubleArray): IntArray {
        require(numbers.size == uniform.size) { "there must be ${uniform.size} numbers, as the question says, got ${numbers.size}" }
        val scale = (bound - 1) / clip
        return IntArray(numbers.size) { i ->
            val exact = (if (numbers[i].isFinite()) numbers[i].toDouble() else 0.0) * scale
            floor(exact + uniform[i]).coerceIn(-bound, bound).toInt()
        }
    }

    /** Return integers as bytes, little-endian. */
    fun bytes(integers: IntArray): ByteArray {
        val bytes = ByteBuffer.allocate(Math.multiplyExact(integers.size, bits / 8)).order(ByteOrder.LITTLE_ENDIAN)
        for (integer in integers) if (bits == 16) bytes.putShort(integer.toShort()) else bytes.putInt(integer)
        return bytes.array()
    }

    /**
     * Return the mask of a seed for one part of an upload, as bytes of [count] integers: AES-256 in
     * counter mode, with a key derived from the seed and the part's name.
     */
    fun mask(seed: ByteArray, part: String, count: Int): ByteArray {
        val key = hkdfExpand(hkdfExtract(ByteArray(0), seed), "shoal mask $part".toByteArray(), 32)
        val cipher = Cipher.getInstance("AES/CTR/NoPadding").apply { init(Cipher.ENCRYPT_MODE, SecretKeySpec(key, "AES"), IvParameterSpec(ByteArray(16))) }
        return cipher.doFinal(ByteArray(Math.multiplyExact(count, bits / 8)))
    }

    /** Return the bytes of integers plus the mask of every seed. */
    fun masked(integers: IntArray, seeds: List<ByteArray>, part: String): ByteArray {
        val total = integers.copyOf()
        for (seed in seeds) {
            val mask = ByteBuffer.wrap(mask(seed, part, total.size)).order(ByteOrder.LITTLE_ENDIAN)
            for (i in total.indices) total[i] += if (bits == 16) mask.getShort().toInt() else mask.getInt()
        }
        return bytes(total)
    }
}
