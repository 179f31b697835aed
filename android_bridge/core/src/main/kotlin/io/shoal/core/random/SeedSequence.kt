package io.shoal.core.random

/**
 * Numpy's `SeedSequence`: turns a few whole numbers into the state of a generator, the same state
 * as in numpy (M. E. O'Neill. Developing a seed_seq alternative, 2015;
 * numpy/random/bit_generator.pyx).
 */
internal class SeedSequence(vararg entropy: Long) {
    private val pool = IntArray(POOL)
    private var hash = INIT_A

    init {
        val words = entropy.flatMap(::words)
        for (i in 0 until POOL) pool[i] = hashed(words.getOrElse(i) { 0 })
        for (source in 0 until POOL) {
            for (target in 0 until POOL) {
                if (source != target) pool[target] = mixed(pool[target], hashed(pool[source]))
            }
        }
        for (word in words.drop(POOL)) {
            for (target in 0 until POOL) pool[target] = mixed(pool[target], hashed(word))
        }
    }

    /** Return the initial state of a generator: [count] numbers of 64 bits. */
    fun state(count: Int): LongArray {
        var constant = INIT_B
        val words = IntArray(2 * count) { i ->
            var value = pool[i % POOL] xor constant
            constant *= MULTIPLY_B
            value *= constant
            value xor (value ushr SHIFT)
        }
        return LongArray(count) { (words[2 * it].toLong() and LOW) or (words[2 * it + 1].toLong() shl 32) }
    }

    private fun hashed(word: Int): Int {
        var value = word xor hash
        hash *= MULTIPLY_A
        value *= hash
        return value xor (value ushr SHIFT)
    }

    private fun mixed(x: Int, y: Int): Int {
        val value = MIX_LEFT * x - MIX_RIGHT * y
        return value xor (value ushr SHIFT)
    }

    private fun words(number: Long): List<Int> {
        require(number >= 0) { "entropy must not be negative, got $number" }
        return if (number ushr 32 == 0L) listOf(number.toInt()) else listOf(number.toInt(), (number ushr 32).toInt())
    }

    private companion object {
        const val POOL = 4
        const val SHIFT = 16
        const val LOW = 0xffffffffL
        const val INIT_A = 0x43b0d7e5
        const val MULTIPLY_A = 0x931e8875.toInt()
        const val INIT_B = 0x8b51f9dd.toInt()
        const val MULTIPLY_B = 0x58f38ded
        const val MIX_LEFT = 0xca01f9dd.toInt()
        const val MIX_RIGHT = 0x4973f715
    }
}
