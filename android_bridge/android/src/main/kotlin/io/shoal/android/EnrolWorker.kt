package io.shoal.android

import android.content.Context
import androidx.work.Worker
import androidx.work.WorkerParameters
import io.shoal.core.ConfigException
import io.shoal.core.Log

/**
 * Worker that enrols the phone as soon as there is a network, without waiting for a charger, and
 * then requests a job.
 */
internal class EnrolWorker(context: Context, parameters: WorkerParameters) : Worker(context, parameters) {
    override fun doWork(): Result = try {
        val fleet = Shoal.fleet(applicationContext, inputData.getString(AndroidPlatform.FLEET).orEmpty())
        when (fleet.enrol(::isStopped)) {
            null -> {
                fleet.requestTraining()
                Result.success()
            }
            is FleetState.Waiting -> Result.retry()
            else -> Result.failure()
        }
    } catch (error: ConfigException) { // the phone has left the fleet
        LogcatLog.write(Log.Level.ERROR, error.message.orEmpty())
        Result.failure()
    }
}
