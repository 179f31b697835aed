package io.shoal.android

import androidx.work.BackoffPolicy
import androidx.work.ExistingWorkPolicy
import io.shoal.android.FakeWorkManager.Companion.HOUR_MS
import io.shoal.android.FakeWorkManager.Companion.STEP_MS
import io.shoal.android.FakeWorkManager.Result
import io.shoal.android.FleetState.Waiting
import io.shoal.core.Log
import org.junit.jupiter.api.io.TempDir
import java.io.File
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFalse
import kotlin.test.assertTrue

/** A week of a phone's jobs, with the library's own decisions on a fake WorkManager. */
class WeekTest {
    @TempDir
    lateinit var root: File

    /**
     * A phone in a fleet whose next round begins as soon as the last one ended.
     *
     * @param sdk API level
     * @param foreground true if Android grants jobs the foreground
     * @param needsCharger true if jobs run on the charger alone
     * @param charges returns true if the phone charges at a time
     * @param retries true if each slice ends with WorkManager's retry instead of a request
     * @param connectMs time before a job trains
     */
    private inner class Week(
        private val sdk: Int,
        private val foreground: Boolean = false,
        private val needsCharger: Boolean = true,
        private val roundMs: Long = HOUR_MS,
        private val rounds: Int = 10,
        private val retries: Boolean = false,
        private val connectMs: Long = 20_000,
        private val charges: (Long) -> Boolean = ::atNight,
    ) {
        private val rules = ForegroundRules(sdk)
        private var times = ForegroundTimes()
        private var trainedMs = 0L
        private var dueMs = 0L
        private val platform = FakePlatform()
        val starts = ArrayList<Long>()

        /** State with which jobs end before they train, or null. */
        var obstacle: FleetState? = null
        val fleet = Fleet("f", Home.of(File(root, "${System.nanoTime()}"), "f"), platform, Log.SILENT)
        private val backoff = if (retries) BackoffPolicy.EXPONENTIAL to 60_000L else BackoffPolicy.LINEAR to RoundRequest.STOPPED_S * 1000
        val manager = FakeWorkManager(sdk, { !needsCharger || charges(it) }, charges, backoff, ::Round)
        private val isDone get() = trainedMs >= rounds * roundMs

        init {
            platform.requesting = { manager.enqueue(it, if (retries && it.policy == ExistingWorkPolicy.REPLACE) ExistingWorkPolicy.KEEP else it.policy) }
            fleet.configure(FleetBuilder("f").broker("mqtt://b").windows(HomeTest.Source::class.java).allowInsecure().build())
            fleet.consent.grant("terms-1")
            platform.write()
        }

        /** Run for at most so many hours. Return the hours until the last round ended, or null. */
        fun run(hours: Double = 7 * 24.0): Double? {
            manager.run((hours * HOUR_MS).toLong(), ::due) { isDone }
            return if (isDone) Math.round(10.0 * manager.nowMs / HOUR_MS) / 10.0 else null
        }

        /** Return the hours until the last round ended, or the number of rounds in a week. */
        fun outcome(): String = run()?.let { "$it h" } ?: "${(trainedMs / roundMs)} rounds"

        /** The work of [DueWorker], every six hours. */
        private fun due() {
            if (manager.nowMs < dueMs || (needsCharger && !charges(manager.nowMs))) return
            dueMs = manager.nowMs + 6 * HOUR_MS
            fleet.requestTraining()
        }

        private inner class Round(private val request: RoundRequest) : FakeWorkManager.Job {
            private val beganMs = manager.nowMs
            private val usedMs = times.usedMs(beganMs)
            override val isForeground = foreground && rules.worthAsking(usedMs)
            private val limitMs = rules.limitMs(isForeground, HOUR_MS, usedMs, needsCharger)

            init {
                starts += beganMs
                fleet.isWorking = true
            }

            override fun step(): Result? {
                val elapsedMs = manager.nowMs - beganMs
                if (elapsedMs < connectMs) return null
                obstacle?.let { return ended(it) }
                trainedMs += STEP_MS
                return if (elapsedMs >= limitMs) ended(Waiting(Waiting.Reason.JOB)) else null
            }

            override fun onStopped() {
                fleet.isWorking = false
                if (isForeground) times = times.plus(beganMs, manager.nowMs)
            }

            private fun ended(state: FleetState): Result {
                onStopped()
                if (retries) return Result.RETRY
                RoundRequest.after(state, request.errors)?.let(fleet::request)
                return Result.SUCCESS
            }
        }
    }

    @Test
    fun `WorkManager's own back-off makes an hour of slices wait for two hours, and two hours for 33`() {
        for ((hours, waits) in listOf(1 to 2.1, 2 to 33.5)) {
            val week = Week(33, roundMs = hours * HOUR_MS, rounds = 1, retries = true, connectMs = 0) { true }
            val took = checkNotNull(week.run())
            assertEquals(waits, took - hours, 0.2)
        }
    }

    /** Phones of some API levels: when their tenth round ends, and the same if each slice ended with a retry. */
    private class Case(val sdks: IntRange, val now: String, val retrying: String, val week: (sdk: Int, retries: Boolean) -> Week)

    @Test
    fun `ten rounds of an hour each end in the second night, on every version`() { // the table of README.md, 'When it runs'
        val never = { _: Long -> false }
        val cases = listOf(
            Case(26..36, "26.4 h", "2 rounds") { sdk, retries -> Week(sdk, retries = retries) },
            Case(26..34, "26.1 h", "54.1 h") { sdk, retries -> Week(sdk, foreground = true, retries = retries) },
            Case(35..36, "26.2 h", "72.6 h") { sdk, retries -> Week(sdk, foreground = true, retries = retries) },
            Case(26..27, "10.4 h", "5 rounds") { sdk, retries -> Week(sdk, needsCharger = false, retries = retries) },
            Case(28..35, "25.2 h", "5 rounds") { sdk, retries -> Week(sdk, needsCharger = false, retries = retries) },
            Case(36..36, "25.8 h", "5 rounds") { sdk, retries -> Week(sdk, needsCharger = false, retries = retries) },
            Case(28..35, "126.6 h", "128.6 h") { sdk, retries -> Week(sdk, needsCharger = false, retries = retries, charges = never) },
            Case(36..36, "6 rounds", "6 rounds") { sdk, retries -> Week(sdk, needsCharger = false, retries = retries, charges = never) },
        )
        for ((number, case) in cases.withIndex()) {
            for (sdk in case.sdks) {
                assertEquals(case.now to case.retrying, case.week(sdk, false).outcome() to case.week(sdk, true).outcome(), "case $number, API $sdk")
            }
        }
    }

    @Test
    fun `stops of the system do not count`() {
        val flapping = 12 * 10 * 60_000L
        val week = Week(33) { it >= flapping || it / (5 * 60_000L) % 2 == 0L }
        week.run(2.0)
        assertEquals(12, week.manager.stops)
        week.starts.zipWithNext { a, b -> assertTrue(b - a < 11 * 60_000L, "the next start was at ${b / 60_000} minutes, after ${a / 60_000}") }
        week.run(2.5)
        assertTrue(week.starts.last() >= flapping && week.starts.first { it >= flapping } < flapping + 3 * 60_000L)
    }

    @Test
    fun `errors in a row delay the next job ever more, and a slice or train soon ends that`() {
        val week = Week(33) { true }
        week.obstacle = Waiting(Waiting.Reason.NETWORK)
        week.run(1.0)
        assertEquals(listOf(1L, 2L, 4L, 8L, 16L), week.starts.zipWithNext { a, b -> (b - a) / 60_000 }.take(5))
        week.obstacle = null
        val count = week.starts.size
        week.fleet.requestTraining()
        week.run(1.1)
        assertEquals(count + 1, week.starts.size, "nobody waits for the delay of an error who asks for a job")
        week.fleet.requestTraining()
        week.run(1.14)
        assertEquals(0, week.manager.stops)
        assertTrue(week.starts.size <= count + 2, "a job that runs goes on")
        week.run(2.0)
        week.obstacle = Waiting(Waiting.Reason.NETWORK)
        val from = week.starts.size
        week.run(2.3)
        assertEquals(2L, week.starts.drop(from).zipWithNext { a, b -> (b - a) / 60_000 }.first(), "after a slice, errors are counted anew")
    }

    @Test
    fun `what follows a job is decided by the state in which it ended`() {
        fun delay(state: FleetState, errors: Int = 0) = RoundRequest.after(state, errors)?.let { it.delayMs / 60_000 to it.errors }
        assertEquals(0L to 0, delay(Waiting(Waiting.Reason.JOB), errors = 7))
        assertEquals(10L to 0, delay(Waiting(Waiting.Reason.HEAT), errors = 7), "heat is no error: it passes at its own pace")
        for (why in listOf(Waiting.Reason.NETWORK, Waiting.Reason.STORAGE, Waiting.Reason.ENROLMENT, Waiting.Reason.APPROVAL)) {
            assertEquals(listOf(1L to 1, 8L to 4, 300L to 100), listOf(0, 3, 99).map { delay(Waiting(why), it) })
        }
        val none = listOf(FleetState.Idle, Waiting(Waiting.Reason.WINDOWS), FleetState.Blocked(FleetState.Blocked.Reason.FAILED, ""))
        for (state in none) assertEquals(null, delay(state))
    }

    @Test
    fun `jobs of two fleets take turns`() {
        val turns = Turns()
        assertTrue(turns.begin())
        val other = kotlin.concurrent.thread(start = false) { assertFalse(turns.begin()) }
        other.start()
        other.join()
        val (later, next) = RoundRequest.later(3) to RoundRequest.after(Waiting(Waiting.Reason.JOB), 0, yields = turns.end())!!
        assertEquals(3, later.errors, "somebody else's turn is no error, and no success")
        assertTrue(later.delayMs < next.delayMs, "the one that was refused comes first")
        assertTrue(turns.begin())
        assertFalse(turns.end())
    }

    private companion object {
        /** Return true from 23:00 to 7:00; time 0 is 23:00. */
        fun atNight(ms: Long): Boolean = ms % (24 * HOUR_MS) < 8 * HOUR_MS
    }
}
