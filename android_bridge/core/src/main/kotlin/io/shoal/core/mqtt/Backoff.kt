package io.shoal.core.mqtt

import java.util.Random

/** Pauses that double, from one second to a minute, each drawn between half of it and one and a half: a fleet must not return at once. */
internal class Backoff(private val random: Random = Random()) {
    private var ms = FIRST_MS

    /** The next pause. */
    fun nextMs(): Long {
        val drawn = (ms * (0.5 + random.nextDouble())).toLong()
        ms = minOf(ms * 2, LONGEST_MS)
        return drawn
    }

    /** A connection has held: the next pause is short again. */
    fun reset() {
        ms = FIRST_MS
    }

    private companion object {
        const val FIRST_MS = 1_000L
        const val LONGEST_MS = 60_000L
    }
}
