package io.shoal.core

/**
 * Time of the next retry of a request that waits for an answer (`edge_client/core/backoff.py`).
 * Every retry doubles the pause.
 */
internal class Retry(private val clock: Clock) {
    private var pauseS = FIRST_PAUSE_S
    private var atS = Double.POSITIVE_INFINITY

    /** True if a retry is due. */
    val isDue: Boolean get() = clock.steadySeconds() >= atS

    /** Start the retries of a new request with the shortest pause. */
    fun begin() {
        pauseS = FIRST_PAUSE_S
        atS = clock.steadySeconds() + pauseS
    }

    /** Start the retries of a request, unless retries are under way already. */
    fun ensure() {
        if (atS == Double.POSITIVE_INFINITY) begin()
    }

    /** Double the pause after a retry. */
    fun tried() {
        pauseS = minOf(pauseS * 2, LONGEST_PAUSE_S)
        atS = clock.steadySeconds() + pauseS
    }

    /** Put the next retry off by the pause that the other side demands (seconds). */
    fun after(seconds: Double) {
        atS = clock.steadySeconds() + maxOf(LEAST_PAUSE_S, seconds)
    }

    /** Stop the retries: nothing waits for an answer. */
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
