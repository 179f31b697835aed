package io.shoal.android

import androidx.work.BackoffPolicy
import androidx.work.ExistingWorkPolicy

/**
 * One chain of unique work of WorkManager on a virtual clock, with WorkManager's own formula of the
 * back-off, and JobScheduler's limits of an API level. In the background a job has ten minutes;
 * without a charger an app of the bucket 'working set' has, from API 28 on, ten minutes of jobs in
 * two hours, from API 36 on in four.
 *
 * @param isMet returns true if the constraints hold at a time
 * @param isCharging returns true if the phone charges at a time
 * @param start makes the job of a request that starts
 */
internal class FakeWorkManager(
    private val sdk: Int,
    private val isMet: (Long) -> Boolean,
    private val isCharging: (Long) -> Boolean,
    private val backoff: Pair<BackoffPolicy, Long> = BackoffPolicy.LINEAR to RoundRequest.STOPPED_S * 1000,
    private val start: (RoundRequest) -> Job,
) {
    enum class State { ENQUEUED, BLOCKED, RUNNING, SUCCEEDED, FAILED, CANCELLED }

    enum class Result { SUCCESS, RETRY, FAILURE }

    interface Job {
        /** True if it runs beside a foreground service. */
        val isForeground: Boolean

        /** Work for [STEP_MS] more. Return the result, or null if it goes on. */
        fun step(): Result?

        fun onStopped() = Unit
    }

    private class Work(val request: RoundRequest, var state: State, var enqueuedMs: Long) {
        var starts = 0
        val isFinished get() = state in setOf(State.SUCCEEDED, State.FAILED, State.CANCELLED)
    }

    var nowMs = 0L
        private set
    var stops = 0
        private set
    private var chain = listOf<Work>()
    private var job: Job? = null
    private var startedMs = 0L
    private val spans = ArrayDeque<LongRange>()

    fun enqueue(request: RoundRequest): Unit = enqueue(request, request.policy)

    fun enqueue(request: RoundRequest, policy: ExistingWorkPolicy) {
        val open = chain.filter { !it.isFinished }
        when (policy) {
            ExistingWorkPolicy.KEEP -> if (open.isEmpty()) chain = listOf(Work(request, State.ENQUEUED, nowMs))
            ExistingWorkPolicy.REPLACE -> {
                end { it.onStopped() }
                chain = listOf(Work(request, State.ENQUEUED, nowMs))
            }
            else -> chain = open + Work(request, if (open.isEmpty()) State.ENQUEUED else State.BLOCKED, nowMs)
        }
    }

    /** Let time pass until [untilMs] or until [isOver] returns true. [tick] is called at each step. */
    fun run(untilMs: Long, tick: () -> Unit = {}, isOver: () -> Boolean = { false }) {
        while (nowMs < untilMs && !isOver()) {
            tick()
            val running = job
            if (running == null) begin() else if (hasToStop(running)) stop() else running.step()?.let(::finish)
            nowMs += STEP_MS
        }
    }

    private fun begin() {
        val next = chain.firstOrNull { it.state == State.ENQUEUED && nextRunMs(it) <= nowMs } ?: return
        if (!isMet(nowMs) || (!isFree() && quotaMs() < START_MS)) return
        next.state = State.RUNNING
        next.starts++ // trySetRunning counts each start
        startedMs = nowMs
        job = start(next.request)
    }

    /** Return the time of the next start, as `WorkSpec.calculateNextRunTime` has it. */
    private fun nextRunMs(work: Work): Long {
        val (policy, delayMs) = backoff
        if (work.starts == 0) return work.enqueuedMs + work.request.delayMs
        val wait = if (policy == BackoffPolicy.LINEAR) delayMs * work.starts else Math.scalb(delayMs.toFloat(), work.starts - 1).toLong()
        return work.enqueuedMs + wait.coerceAtMost(MAX_BACKOFF_MS)
    }

    private fun isFree() = sdk < 28 || isCharging(nowMs)

    private fun quotaMs(): Long {
        val fromMs = nowMs - (if (sdk >= 36) 4 else 2) * HOUR_MS
        while (spans.firstOrNull()?.let { it.last < fromMs } == true) spans.removeFirst()
        val current = if (job == null) 0 else nowMs - startedMs
        return LIMIT_MS - current - spans.sumOf { it.last - maxOf(it.first, fromMs) }
    }

    private fun hasToStop(job: Job): Boolean {
        if (!isMet(nowMs)) return true
        if (!isFree() && (sdk >= 36 || !job.isForeground) && quotaMs() <= 0) return true
        return !job.isForeground && nowMs - startedMs >= LIMIT_MS
    }

    /** End the job as the system does: its result does not count, and it is enqueued as it was. */
    private fun stop() {
        stops++
        end { it.onStopped() }
        chain.first { it.state == State.RUNNING }.state = State.ENQUEUED
    }

    private fun end(act: (Job) -> Unit) {
        val running = job ?: return
        if (!isFree()) spans += startedMs..nowMs
        job = null
        act(running)
    }

    private fun finish(result: Result) {
        val work = chain.first { it.state == State.RUNNING }
        end {}
        when (result) {
            Result.SUCCESS -> {
                work.state = State.SUCCEEDED
                chain = chain.filter { !it.isFinished }
                chain.firstOrNull()?.run {
                    state = State.ENQUEUED
                    enqueuedMs = nowMs
                }
            }
            Result.RETRY -> {
                work.state = State.ENQUEUED
                work.enqueuedMs = nowMs
            }
            Result.FAILURE -> chain = emptyList() // and all that was appended
        }
    }

    companion object {
        const val STEP_MS = 5_000L
        const val HOUR_MS = 3_600_000L
        private const val LIMIT_MS = 600_000L
        private const val START_MS = 30_000L
        private const val MAX_BACKOFF_MS = 5 * HOUR_MS
    }
}
