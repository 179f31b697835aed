package io.shoal.android

import androidx.work.ExistingWorkPolicy
import io.shoal.android.FleetState.Waiting
import java.util.concurrent.locks.ReentrantLock

/**
 * Request of one job of a fleet: its place in the fleet's chain of unique work, and the delay
 * before it. No job asks WorkManager to repeat it: WorkManager's back-off counts each start of a
 * request, so work of many slices would wait for hours. Each job requests its successor instead.
 *
 * @param errors number of jobs in a row that ended in errors before this one
 */
internal class RoundRequest private constructor(val policy: ExistingWorkPolicy, val errors: Int, val delayMs: Long) {
    companion object {
        /**
         * Delay that WorkManager adds for each time that the system stopped a request: its minimum,
         * counted from the request on, so that a stop does not count.
         */
        const val STOPPED_S: Long = 10

        private const val MINUTE_MS = 60_000L
        private const val MOST_MS = 5 * 60 * MINUTE_MS
        private const val COOLING_MS = 10 * MINUTE_MS
        private const val TURN_MS = MINUTE_MS

        /** Return a job as soon as the constraints hold, in place of one that waits. */
        fun soon(): RoundRequest = RoundRequest(ExistingWorkPolicy.REPLACE, 0, 0)

        /** Return a job for one that found the job of another fleet running. */
        fun later(errors: Int): RoundRequest = following(errors, TURN_MS)

        /**
         * Return the job that follows one that ended in [state], or null if the next one is due at
         * its usual time. [errors] jobs in a row ended in errors before it. [yields]: true if a job
         * of another fleet waits for its turn.
         */
        fun after(state: FleetState, errors: Int, yields: Boolean = false): RoundRequest? = when ((state as? Waiting)?.reason) {
            null, Waiting.Reason.WINDOWS, Waiting.Reason.UNLOCK -> null
            Waiting.Reason.JOB -> following(0, if (yields) 2 * TURN_MS else 0)
            Waiting.Reason.HEAT -> following(0, COOLING_MS)
            Waiting.Reason.NETWORK, Waiting.Reason.STORAGE, Waiting.Reason.ENROLMENT, Waiting.Reason.APPROVAL -> following(errors + 1, backOffMs(errors + 1))
        }

        private fun following(errors: Int, delayMs: Long) = RoundRequest(ExistingWorkPolicy.APPEND_OR_REPLACE, errors, delayMs)

        /** Return 1, 2, 4, ... minutes, at most 5 hours. */
        private fun backOffMs(errors: Int): Long = minOf(MOST_MS, MINUTE_MS shl minOf(errors - 1, 20))
    }
}

/**
 * Turns of the jobs of a process's fleets: one runs at a time. A job that finds another one running
 * does not wait on a thread of the app's, but asks again later.
 */
internal class Turns {
    private val running = ReentrantLock()

    @Volatile
    private var isAnyRefused = false

    /** Return true if it is the caller's turn until [end]. */
    fun begin(): Boolean = running.tryLock().also { if (!it) isAnyRefused = true }

    /** End the turn. Return true if a job of another fleet has asked for one meanwhile. */
    fun end(): Boolean {
        val yields = isAnyRefused
        isAnyRefused = false
        running.unlock()
        return yields
    }
}
