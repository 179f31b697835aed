package io.shoal.android

import android.content.Context
import androidx.work.Worker
import androidx.work.WorkerParameters
import io.shoal.core.ConfigException

/**
 * Worker that Android starts every few hours. It only requests a job of [RoundWorker], unless one
 * is running.
 */
internal class DueWorker(context: Context, parameters: WorkerParameters) : Worker(context, parameters) {
    override fun doWork(): Result = try {
        Shoal.fleet(applicationContext, inputData.getString(AndroidPlatform.FLEET).orEmpty()).requestTraining()
        Result.success()
    } catch (error: ConfigException) { // the phone has left the fleet, or the app lacks the class of its windows
        LogcatLog.write(io.shoal.core.Log.Level.ERROR, error.message.orEmpty())
        Result.failure()
    }
}
