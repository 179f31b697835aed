package io.shoal.android

import android.content.Context
import android.os.Build
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
import io.shoal.core.ShoalException
import io.shoal.core.Windows
import java.io.IOException
import java.util.concurrent.ExecutionException
import java.util.concurrent.locks.ReentrantLock

/**
 * One job of one fleet: connect, check in, carry out the plans that come, disconnect. Made by WorkManager, on its own thread; all jobs of a
 * fleet are one chain of unique work, and a lock holds off the job of another fleet. Where Android stops it, in the midst of training or of an
 * upload, the next job goes on from what lies on disk. Where consent is withdrawn, it ends before its next batch.
 */
internal class RoundWorker(context: Context, parameters: WorkerParameters) : Worker(context, parameters) {
    override fun doWork(): Result {
        if (!RUNNING.tryLock()) return Result.retry()
        return try {
            val fleet = Shoal.fleet(applicationContext, inputData.getString(AndroidPlatform.FLEET).orEmpty())
            fleet.running.lock()
            try {
                finished(fleet, state(fleet))
            } finally {
                fleet.running.unlock()
            }
        } catch (error: ConfigException) { // the phone has left meanwhile
            LogcatLog.write(Log.Level.ERROR, error.message.orEmpty())
            Result.failure()
        } finally {
            RUNNING.unlock()
        }
    }

    private fun finished(fleet: Fleet, state: FleetState): Result {
        LogcatLog.write(if (state is Blocked) Log.Level.ERROR else Log.Level.INFO, "fleet ${fleet.name}: $state")
        fleet.states.set(state)
        try {
            fleet.home.noteState(state)
        } catch (error: IOException) {
            LogcatLog.write(Log.Level.ERROR, "the job cannot be noted: $error")
        }
        return when (state) {
            is Waiting -> if (state.why == Waiting.Why.WINDOWS) Result.success() else Result.retry()
            is Blocked -> Result.failure()
            else -> Result.success()
        }
    }

    /** Does the job; the state that it leaves. */
    private fun state(fleet: Fleet): FleetState = try {
        work(fleet)
    } catch (error: LinkException) {
        LogcatLog.write(Log.Level.WARNING, error.message.orEmpty())
        Waiting(Waiting.Why.NETWORK)
    } catch (error: IOException) { // the disk is full, for instance
        LogcatLog.write(Log.Level.WARNING, "$error")
        Waiting(Waiting.Why.STORAGE)
    } catch (error: DataException) {
        Blocked(Blocked.Reason.FAILED, error.message.orEmpty())
    } catch (error: ShoalException) {
        Blocked(Blocked.Reason.SETTINGS, error.message.orEmpty())
    } catch (error: Throwable) { // a defect: the app it lives in must not end by it
        Blocked(Blocked.Reason.FAILED, error.toString())
    }

    private fun work(fleet: Fleet): FleetState {
        if (!fleet.consent.granted) return Blocked(Blocked.Reason.CONSENT, "no consent")
        fleet.enrol()?.let { return it }
        val settings = fleet.settings
        val health = DeviceHealth(applicationContext)
        if (health.freeBytes() < settings.minFreeBytes) return Waiting(Waiting.Why.STORAGE)
        val windows = windows(fleet, settings) ?: return Waiting(Waiting.Why.WINDOWS)
        fleet.states.set(Waiting(Waiting.Why.JOB))
        fleet.bringModel()
        val phone = phone(fleet, settings, windows, health)
        val startedMs = System.currentTimeMillis()
        val (foreground, limitMs) = begin(fleet.home, settings)
        val outcome = try {
            phone.job(settings.idleMinutes * 60_000L, limitMs, CONNECT_MS) { isStopped || !fleet.consent.granted }
        } finally {
            if (foreground) fleet.home.foregroundTimes = fleet.home.foregroundTimes.plus(startedMs, System.currentTimeMillis())
        }
        return if (outcome == Phone.Outcome.IDLE) FleetState.Idle else Waiting(Waiting.Why.JOB)
    }

    /** @throws ConfigException the app's class cannot be made */
    private fun windows(fleet: Fleet, settings: ShoalSettings): Windows? {
        val source = try {
            settings.windows.getDeclaredConstructor().newInstance()
        } catch (error: ReflectiveOperationException) {
            throw ConfigException("${settings.windows.name}: it cannot be made by a public constructor without parameters: $error", error)
        }
        return source.load(applicationContext, fleet.name)
    }

    private fun phone(fleet: Fleet, settings: ShoalSettings, windows: Windows, health: DeviceHealth) = Phone(
        fleet.deviceId,
        settings.fleet,
        fleet.address(),
        windows,
        fleet.storage(),
        fleet.loader(),
        settings.trusted,
        settings.insecure,
        settings.policy,
        health = health::now,
        clock = PhoneClock,
        log = LogcatLog,
        progress = { fleet.states.set(stateOf(it)) },
    )

    private fun stateOf(progress: Progress): FleetState = when (progress) {
        is Progress.Training -> FleetState.Training(progress.step, progress.of)
        Progress.Uploading -> FleetState.Uploading
        Progress.Waiting -> Waiting(Waiting.Why.JOB)
    }

    /** Asks for the foreground where that is wanted and allowed; whether it was given, and how long the job may run, in ms. */
    private fun begin(home: Home, settings: ShoalSettings): Pair<Boolean, Long> {
        val rules = ForegroundRules(Build.VERSION.SDK_INT)
        val usedMs = home.foregroundTimes.usedMs(System.currentTimeMillis())
        val foreground = settings.foreground && rules.worthAsking(usedMs) && try {
            setForegroundAsync(foregroundInfo(applicationContext, rules)).get()
            true
        } catch (error: ExecutionException) { // from API 31 on it may be refused to an app in the background
            LogcatLog.write(Log.Level.INFO, "not in the foreground: ${error.cause}")
            false
        } catch (error: IllegalStateException) {
            LogcatLog.write(Log.Level.INFO, "not in the foreground: $error")
            false
        }
        return foreground to rules.limitMs(foreground, settings.maxMinutes * 60_000L, usedMs)
    }

    private companion object {
        const val CONNECT_MS = 60_000L

        /** Held by the one job of this process that is running. */
        val RUNNING = ReentrantLock()
    }
}
