package io.shoal.core.secret

import io.shoal.core.wire.Noise
import io.shoal.core.wire.SumPart
import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlin.math.ceil
import kotlin.math.exp
import kotlin.math.floor
import kotlin.math.sqrt

private const val TWO_TO_64 = 18446744073709551616.0

/** Return numbers drawn from [0, 1), from bytes of [draw]. */
internal fun uniform(count: Int, draw: (Int) -> ByteArray): DoubleArray {
    val drawn = ByteBuffer.wrap(draw(Math.multiplyExact(4, count))).order(ByteOrder.LITTLE_ENDIAN)
    return DoubleArray(count) { (drawn.getInt().toLong() and 0xffffffffL) / 4294967296.0 }
}

/**
 * Return the integers of a device's numbers by part, with noise (`wire/SPEC.md`, 'Noise in shares').
 * All parts are clipped and rounded together.
 *
 * @param draw function that returns a number of random bytes, which nobody else may know
 */
internal fun noised(parts: Map<String, SumPart>, noise: Noise, numbers: Map<String, FloatArray>, draw: (Int) -> ByteArray): Map<String, IntArray> {
    val scaled = parts.flatMap { (name, part) ->
        val own = numbers.getValue(name)
        require(own.size == part.count) { "there must be ${part.count} numbers, as the question says, got ${own.size}" }
        own.map { number -> (number * (noise.norm / part.clip)).let { if (it.isFinite()) it else 0.0 } } // a clip near 0 makes infinite ones
    }.toDoubleArray()
    val rounded = roundedWithin(scaled, noise.norm, draw)
    val drawn = discreteGaussian(noise.deviation, rounded.size, draw)
    var at = 0
    return parts.mapValues { (_, part) -> IntArray(part.count) { (rounded[at + it] + drawn[at + it]).toInt() }.also { at += part.count } }
}

/** Return the largest Euclidean norm of [count] integers that are rounded from numbers of a norm. */
private fun roundedNorm(norm: Double, count: Int): Double = sqrt(norm * norm + count / 4.0 + norm + sqrt(count.toDouble()) / 2)

/**
 * Return numbers as integers, rounded up or down at random. Numbers of a larger Euclidean norm than [norm]
 * are shortened to it first. Integers of a larger norm than [roundedNorm] are rounded anew.
 */
private fun roundedWithin(numbers: DoubleArray, norm: Double, draw: (Int) -> ByteArray): LongArray {
    val length = sqrt(numbers.sumOf { it * it })
    val exact = if (length > norm) DoubleArray(numbers.size) { numbers[it] * (norm / length) } else numbers
    val limit = roundedNorm(norm, exact.size)
    while (true) {
        val up = uniform(exact.size, draw)
        val rounded = DoubleArray(exact.size) { floor(exact[it] + up[it]) }
        if (rounded.sumOf { it * it } <= limit * limit) return LongArray(rounded.size) { rounded[it].toLong() }
    }
}

/** Return integers from the discrete Gaussian of a standard deviation, whose chances are multiples of 2^-64. */
private fun discreteGaussian(deviation: Double, count: Int, draw: (Int) -> ByteArray): LongArray {
    val reach = ceil(Noise.REACH * deviation).toInt()
    val table = table(deviation, reach)
    val drawn = ByteBuffer.wrap(draw(Math.multiplyExact(8, count))).order(ByteOrder.LITTLE_ENDIAN)
    return LongArray(count) {
        val uniform = drawn.getLong().toULong()
        var (from, to) = Pair(0, table.size) // thresholds before `from` are at most the number, those from `to` on are larger
        while (from < to) {
            val middle = (from + to) / 2
            if (table[middle].toULong() <= uniform) from = middle + 1 else to = middle
        }
        (from - reach).toLong()
    }
}

/** Return the thresholds: the chances of an integer of -reach or less, and so on, in units of 2^-64, as unsigned numbers. */
private fun table(deviation: Double, reach: Int): LongArray {
    var sum = 0.0 // from the tail on, so that small chances are exact as well
    val below = DoubleArray(reach) {
        val distance = (it - reach) / deviation
        sum += exp(-(distance * distance) / 2)
        sum
    }
    val lower = LongArray(reach) { (below[it] / (2 * sum + 1) * TWO_TO_64).toULong().toLong() }
    return lower + LongArray(reach) { lower[reach - 1 - it].inv() }
}
