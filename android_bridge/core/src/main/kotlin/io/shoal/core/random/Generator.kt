package io.shoal.core.random

import java.util.Locale

/**
 * State of a [Generator] beyond its seed: 128 bits in hexadecimal digits, and the half of the last
 * 64 bits that was not used yet.
 */
internal data class RandomState(val state: String, val half: Long?)

/**
 * Generator of the same numbers as `numpy.random.default_rng(seeds)`: PCG64 (M. E. O'Neill. PCG: a
 * family of simple fast space-efficient statistically good algorithms for random number generation,
 * 2014; variant XSL RR 128/64) seeded by [SeedSequence]. Not for secrets.
 */
internal class Generator(vararg seeds: Long) {
    private var high = 0L
    private var low = 0L
    private val stepHigh: Long
    private val stepLow: Long
    private var half = 0
    private var hasHalf = false

    init {
        val (stateHigh, stateLow, streamHigh, streamLow) = SeedSequence(*seeds).state(4)
        stepHigh = (streamHigh shl 1) or (streamLow ushr 63)
        stepLow = (streamLow shl 1) or 1
        advance()
        add(stateHigh, stateLow)
        advance()
    }

    /** Return the state. */
    fun state() = RandomState("%016x%016x".format(Locale.ROOT, high, low), if (hasHalf) half.toLong() and LOW else null)

    /** Set the state to that of another generator of the same seeds. */
    fun put(state: RandomState) {
        high = java.lang.Long.parseUnsignedLong(state.state.take(16), 16)
        low = java.lang.Long.parseUnsignedLong(state.state.drop(16), 16)
        hasHalf = state.half != null
        half = (state.half ?: 0L).toInt()
    }

    /** Return a random order of 0 until [count], as `permutation(count)` does. */
    fun permutation(count: Int): IntArray {
        val order = IntArray(count) { it }
        for (i in count - 1 downTo 1) {
            val j = upTo(i)
            order[i] = order[j].also { order[j] = order[i] }
        }
        return order
    }

    /** Return [count] numbers in [0, 1), as `random(count, float32)` does. */
    fun floats(count: Int): FloatArray = FloatArray(count) { (nextInt() ushr 8) * (1.0f / (1 shl 24)) }

    /**
     * Return a number from 0 to [most]: as many bits as it has are drawn until they are not above
     * it.
     */
    private fun upTo(most: Int): Int {
        val mask = -1 ushr Integer.numberOfLeadingZeros(most)
        while (true) {
            val value = nextInt() and mask
            if (value <= most) return value
        }
    }

    /** Return 32 bits: the low half of a draw, then its high half. */
    private fun nextInt(): Int {
        if (hasHalf) {
            hasHalf = false
            return half
        }
        advance()
        val drawn = java.lang.Long.rotateRight(high xor low, (high ushr 58).toInt())
        half = (drawn ushr 32).toInt()
        hasHalf = true
        return drawn.toInt()
    }

    private fun advance() {
        val product = low * MULTIPLIER_LOW
        high = multiplyHigh(low, MULTIPLIER_LOW) + high * MULTIPLIER_LOW + low * MULTIPLIER_HIGH
        low = product
        add(stepHigh, stepLow)
    }

    private fun add(otherHigh: Long, otherLow: Long) {
        low += otherLow
        high += otherHigh + if (java.lang.Long.compareUnsigned(low, otherLow) < 0) 1 else 0
    }

    private companion object {
        const val MULTIPLIER_HIGH = 2549297995355413924L
        const val MULTIPLIER_LOW = 4865540595714422341L
        const val LOW = 0xffffffffL

        /** Return the upper 64 of the 128 bits of an unsigned product. */
        fun multiplyHigh(a: Long, b: Long): Long {
            val cross = (a and LOW) * (b ushr 32) + ((a and LOW) * (b and LOW) ushr 32)
            val middle = (a ushr 32) * (b and LOW) + (cross and LOW)
            return (a ushr 32) * (b ushr 32) + (cross ushr 32) + (middle ushr 32)
        }
    }
}
