package io.shoal.android

import android.content.Context
import android.os.Build
import androidx.work.Worker
import androidx.work.WorkerParameters
import io.shoal.core.ConfigException
import io.shoal.core.LinkException
import io.shoal.core.Phone
import io.shoal.core.ShoalException
import java.io.IOException
import java.util.concurrent.ExecutionException
import java.util.concurrent.locks.ReentrantLock

/**
 * One job: connect, check in, carry out the plans that come, disconnect. Made by WorkManager, on its own thread; all jobs are one chain of
 * unique work, and a lock holds off a second one. Where Android stops it, in the midst of training or of an upload, the next job goes on from
 * what lies on disk.
 */
public class RoundWorker(context: Context, parameters: WorkerParameters) : Worker(context, parameters) {
    override fun doWork(): Result {
        if (!RUNNING.tryLock()) return Result.retry()
        val home = Home(applicationContext)
        return try {
            val (result, text) = work(home, home.settings())
            home.noteJob(System.currentTimeMillis(), text)
            result
        } catch (error: IOException) {
            failed(home, "waiting: $error", Result.retry())
        } catch (error: ConfigException) {
            failed(home, "failed: ${error.message}", Result.failure())
        } catch (error: Throwable) { // a defect: the app it lives in must not end by it
            failed(home, "failed: $error", Result.failure())
        } finally {
            RUNNING.unlock()
        }
    }

    private fun failed(home: Home, text: String, result: Result): Result {
        LogcatLog.write(io.shoal.core.Log.Level.ERROR, text)
        try {
            home.noteJob(System.currentTimeMillis(), text)
        } catch (error: IOException) {
            LogcatLog.write(io.shoal.core.Log.Level.ERROR, "the job cannot be noted: $error")
        }
        return result
    }

    private fun work(home: Home, settings: ShoalSettings): Pair<Result, String> {
        val health = DeviceHealth(applicationContext)
        val freeBytes = health.freeBytes()
        if (freeBytes < settings.minFreeBytes) return Result.retry() to "waiting: $freeBytes bytes of storage are free, ${settings.minFreeBytes} are needed"
        return try {
            val windows = settings.windows.getDeclaredConstructor().newInstance().load(applicationContext)
                ?: return Result.success() to "nothing to train on yet"
            val phone = phone(applicationContext, home, settings, windows)
            val startedMs = System.currentTimeMillis()
            val (foreground, limitMs) = begin(home, settings)
            val outcome = try {
                phone.job(settings.idleMinutes * 60_000L, limitMs, CONNECT_MS, ::isStopped)
            } finally {
                if (foreground) home.foregroundTimes = home.foregroundTimes.plus(startedMs, System.currentTimeMillis())
            }
            when (outcome) {
                Phone.Outcome.IDLE -> Result.success() to "done"
                Phone.Outcome.UNFINISHED -> Result.retry() to "to be continued: the time was up"
                Phone.Outcome.STOPPED -> Result.retry() to "to be continued: Android stopped the job"
            }
        } catch (error: LinkException) {
            Result.retry() to "waiting: ${error.message}"
        } catch (error: ReflectiveOperationException) {
            throw ConfigException("${settings.windows.name}: it cannot be made by a public constructor without parameters: $error", error)
        } catch (error: ShoalException) {
            throw ConfigException(error.message.orEmpty(), error)
        }
    }

    /** Asks for the foreground where that is wanted and allowed; whether it was given, and how long the job may run, in ms. */
    private fun begin(home: Home, settings: ShoalSettings): Pair<Boolean, Long> {
        val rules = ForegroundRules(Build.VERSION.SDK_INT)
        val usedMs = home.foregroundTimes.usedMs(System.currentTimeMillis())
        val foreground = settings.foreground && rules.worthAsking(usedMs) && try {
            setForegroundAsync(foregroundInfo(applicationContext, rules)).get()
            true
        } catch (error: ExecutionException) { // from API 31 on it may be refused to an app in the background
            LogcatLog.write(io.shoal.core.Log.Level.INFO, "not in the foreground: ${error.cause}")
            false
        } catch (error: IllegalStateException) {
            LogcatLog.write(io.shoal.core.Log.Level.INFO, "not in the foreground: $error")
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
