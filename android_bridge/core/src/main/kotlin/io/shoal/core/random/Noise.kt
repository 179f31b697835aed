package io.shoal.core.random

import io.shoal.core.InternalShoalApi
import java.nio.ByteBuffer
import java.security.SecureRandom

/** Source of standard normal numbers that the aggregator cannot reproduce. */
@InternalShoalApi
public fun interface Noise {
    /** Return the next number. */
    public fun next(): Double

    public companion object {
        /** Return noise from the operating system's entropy. */
        public fun fromEntropy(): Noise = PolarNoise(SecureRandom())
    }
}

/**
 * Noise by the polar method (G. Marsaglia, T. A. Bray. A convenient method for generating normal
 * variables. SIAM Review 6, 1964) over [source].
 */
private class PolarNoise(private val source: SecureRandom) : Noise {
    private val bytes = ByteArray(8192)
    private val numbers = ByteBuffer.wrap(bytes).asLongBuffer().apply { position(limit()) }
    private var spare = Double.NaN

    override fun next(): Double {
        if (!spare.isNaN()) return spare.also { spare = Double.NaN }
        while (true) {
            val x = symmetric()
            val y = symmetric()
            val square = x * x + y * y
            if (square < 1 && square > 0) {
                val factor = Math.sqrt(-2 * Math.log(square) / square)
                spare = y * factor
                return x * factor
            }
        }
    }

    /** Return a number in [-1, 1), one of 2^53. */
    private fun symmetric(): Double {
        if (!numbers.hasRemaining()) {
            source.nextBytes(bytes)
            numbers.rewind()
        }
        return (numbers.get() shr 11) * (1.0 / (1L shl 52))
    }
}
