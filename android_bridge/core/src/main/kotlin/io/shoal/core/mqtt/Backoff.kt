package io.shoal.core.mqtt

import java.util.Random

/**
 * Pauses that double, from one second to a minute. Each is drawn between half of it and one and a
 * half, so that the devices of a fleet do not return all at once.
 */
internal class Backoff(private val random: Random = Random()) {
    private var ms = FIRST_MS

    /** Return the next pause. */
    fun nextMs(): Long {
        val drawn = (ms * (0.5 + random.nextDouble())).toLong()
        ms = minOf(ms * 2, LONGEST_MS)
        return drawn
    }

    /** Start again with the shortest pause, after a connection that lasted. */
    fun reset() {
        ms = FIRST_MS
    }

    private companion object {
        const val FIRST_MS = 1_000L
        const val LONGEST_MS = 60_000L
    }
}
