package io.shoal.android

import android.content.Context
import android.os.Build
import android.os.SystemClock
import androidx.work.Worker
import androidx.work.WorkerParameters
import io.shoal.android.FleetState.Blocked
import io.shoal.android.FleetState.Waiting
import io.shoal.core.ConfigException
import io.shoal.core.DataException
import io.shoal.core.LinkException
import io.shoal.core.Log
import io.shoal.core.Phone
import io.shoal.core.Progress
import io.shoal.core.Route
import io.shoal.core.ShoalException
import io.shoal.core.StorageException
import io.shoal.core.UnsupportedException
import io.shoal.core.Windows
import java.io.IOException

/**
 * Worker of one job of one fleet: connect, check in, carry out the plans that come, disconnect, and
 * request the job that follows. WorkManager makes it, on its own thread. All jobs of a fleet are one
 * chain of unique work, and jobs of several fleets take turns. If Android stops it during training
 * or an upload, the next job resumes from the files on disk. If consent is withdrawn or the phone
 * gets too hot, it ends before its next batch.
 */
internal class RoundWorker(context: Context, parameters: WorkerParameters) : Worker(context, parameters) {
    override fun doWork(): Result {
        val errors = inputData.getInt(AndroidPlatform.ERRORS, 0)
        return try {
            val fleet = Shoal.fleet(applicationContext, inputData.getString(AndroidPlatform.FLEET).orEmpty())
            if (!TURNS.begin()) {
                fleet.request(RoundRequest.later(errors))
                return Result.success()
            }
            var yields = false
            val state = try {
                alone(fleet)
            } finally {
                yields = TURNS.end()
            }
            // WorkManager starts a job that the system has stopped again, and none that was cancelled.
            if (!isStopped) RoundRequest.after(state, errors, yields)?.let(fleet::request)
            if (state is Blocked) Result.failure() else Result.success()
        } catch (error: ConfigException) { // the phone has left the fleet
            LogcatLog.write(Log.Level.ERROR, error.message.orEmpty())
            Result.failure()
        }
    }

    private fun alone(fleet: Fleet): FleetState {
        fleet.running.lock()
        fleet.isWorking = true
        try {
            return atBackgroundPriority { state(fleet) }.also { finished(fleet, it) }
        } finally {
            fleet.isWorking = false
            fleet.running.unlock()
        }
    }

    private fun finished(fleet: Fleet, state: FleetState) {
        LogcatLog.write(if (state is Blocked) Log.Level.ERROR else Log.Level.INFO, "job finished fleet=${fleet.name} state=$state")
        fleet.states.set(state)
        try {
            fleet.home.noteState(state)
        } catch (error: IOException) {
            LogcatLog.write(Log.Level.ERROR, "the job's state cannot be stored: $error")
        }
    }

    /** Run the job, and return the state after it. */
    private fun state(fleet: Fleet): FleetState = try {
        work(fleet)
    } catch (error: Throwable) { // a defect must not end the app
        stateAfter(error).also { if (it is Waiting) LogcatLog.write(Log.Level.WARNING, "$error") }
    }

    private fun work(fleet: Fleet): FleetState {
        if (!fleet.consent.isGranted) return Blocked(Blocked.Reason.CONSENT, "no consent")
        fleet.loader().require()
        fleet.enrol(::isStopped)?.let { return it }
        val settings = fleet.settings
        val health = DeviceHealth(applicationContext)
        if (health.freeBytes() < settings.minFreeBytes) return Waiting(Waiting.Reason.STORAGE)
        val heat = health.heat()
        if (heat.forbidsStart()) return Waiting(Waiting.Reason.HEAT)
        val windows = windows(fleet, settings) ?: return Waiting(Waiting.Reason.WINDOWS)
        fleet.states.set(Waiting(Waiting.Reason.JOB))
        fleet.bringModel()
        val startedMs = System.currentTimeMillis()
        val (foreground, limitMs) = begin(fleet, settings)
        val phone = phone(fleet, settings, windows, health, foreground)
        var hot = false
        val outcome = try {
            phone.job(settings.idleTimeout.toMillis(), limitMs, CONNECT_MS) { isStopped || !fleet.consent.isGranted || heat.ends().also { hot = it } }
        } finally {
            if (foreground != null) fleet.home.foregroundTimes = fleet.home.foregroundTimes.plus(startedMs, System.currentTimeMillis())
        }
        return if (outcome == Phone.Outcome.IDLE) FleetState.Idle else Waiting(if (hot) Waiting.Reason.HEAT else Waiting.Reason.JOB)
    }

    /**
     * Return the phone's examples, or null if there are none.
     *
     * @throws ConfigException the app's class cannot be created
     */
    private fun windows(fleet: Fleet, settings: ShoalSettings): Windows? = settings.source().load(applicationContext, fleet.name)

    private fun phone(fleet: Fleet, settings: ShoalSettings, windows: Windows, health: DeviceHealth, foreground: JobForeground?) = Phone(
        fleet.deviceId,
        settings.fleet,
        fleet.address(route()),
        windows,
        fleet.storage(),
        fleet.loader(),
        settings.trusted,
        settings.insecure,
        settings.policy,
        health = health::now,
        clock = PhoneClock,
        log = LogcatLog,
        progress = {
            fleet.states.set(stateOf(it))
            if (it is Progress.Training) foreground?.progress(it.step, it.of)
        },
        helpers = settings.helpers,
        key = settings.helpers?.let { fleet.certifiedKey },
    )

    /** Return the network of the job's constraints, which Android names from API 28 on. */
    private fun route(): Route = (if (Build.VERSION.SDK_INT >= 28) network else null)?.let(::NetworkRoute) ?: Route.System

    private fun stateOf(progress: Progress): FleetState = when (progress) {
        is Progress.Training -> FleetState.Training(progress.step, progress.of)
        Progress.Uploading -> FleetState.Uploading
        Progress.Waiting -> Waiting(Waiting.Reason.JOB)
    }

    /**
     * Ask for the foreground if that is wanted and permitted. Return it, or null if it was refused,
     * and the time limit of the job (ms).
     */
    private fun begin(fleet: Fleet, settings: ShoalSettings): Pair<JobForeground?, Long> {
        val rules = ForegroundRules(Build.VERSION.SDK_INT)
        val usedMs = fleet.home.foregroundTimes.usedMs(System.currentTimeMillis())
        val jobs = if (settings.foreground && rules.worthAsking(usedMs)) foregroundJobs() else null
        val foreground = jobs?.let { requestForeground(fleet.name, it, rules) }
        return foreground to rules.limitMs(foreground != null, settings.maxDuration.toMillis(), usedMs, settings.requireCharging)
    }

    private fun requestForeground(fleet: String, jobs: ForegroundJobs, rules: ForegroundRules): JobForeground? {
        val show = { step: Long, of: Long ->
            setForegroundAsync(jobs.info(applicationContext, ForegroundJob(id, fleet, rules.typed, step, of)))
        }
        val foreground = JobForeground(show, SystemClock::elapsedRealtime)
        val refused = foreground.begin() ?: return foreground
        LogcatLog.write(Log.Level.INFO, "the job runs in the background, the foreground is refused: $refused")
        return null
    }

    private companion object {
        const val CONNECT_MS = 60_000L

        /** Turns of this process's jobs. */
        val TURNS = Turns()
    }
}

/** Return the state after a job that ended in an error. */
internal fun stateAfter(error: Throwable): FleetState = when (error) {
    is LinkException -> Waiting(Waiting.Reason.NETWORK)
    is IOException, is StorageException -> Waiting(Waiting.Reason.STORAGE) // the disk is full, for instance
    is UnsupportedException -> Blocked(Blocked.Reason.UNSUPPORTED, error.message.orEmpty())
    is DataException -> Blocked(Blocked.Reason.FAILED, error.message.orEmpty())
    is ShoalException -> Blocked(Blocked.Reason.SETTINGS, error.message.orEmpty())
    else -> Blocked(Blocked.Reason.FAILED, error.toString())
}
