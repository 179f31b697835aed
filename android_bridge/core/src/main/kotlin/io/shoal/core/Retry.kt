package io.shoal.core

/** When to try again what had no answer (`edge_client/core/backoff.py`): after a pause that doubles each time. */
internal class Retry(private val clock: Clock) {
    private var pauseS = FIRST_PAUSE_S
    private var atS = Double.POSITIVE_INFINITY

    /** Whether it is time to try again. */
    val isDue: Boolean get() = clock.steadySeconds() >= atS

    /** Something new waits for an answer. */
    fun begin() {
        pauseS = FIRST_PAUSE_S
        atS = clock.steadySeconds() + pauseS
    }

    /** Something waits for an answer; if something did before, nothing changes. */
    fun goOn() {
        if (atS == Double.POSITIVE_INFINITY) begin()
    }

    /** It was tried again; the next pause is twice as long. */
    fun tried() {
        pauseS = minOf(pauseS * 2, LONGEST_PAUSE_S)
        atS = clock.steadySeconds() + pauseS
    }

    /** The other side asked to be left alone for so long. */
    fun after(seconds: Double) {
        atS = clock.steadySeconds() + maxOf(LEAST_PAUSE_S, seconds)
    }

    /** Nothing waits any more. */
    fun end() {
        pauseS = FIRST_PAUSE_S
        atS = Double.POSITIVE_INFINITY
    }

    private companion object {
        const val FIRST_PAUSE_S = 10.0
        const val LONGEST_PAUSE_S = 300.0
        const val LEAST_PAUSE_S = 1.0
    }
}
