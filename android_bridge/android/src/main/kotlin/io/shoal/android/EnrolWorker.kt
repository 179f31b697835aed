package io.shoal.android

import android.content.Context
import androidx.work.Worker
import androidx.work.WorkerParameters
import io.shoal.core.ConfigException
import io.shoal.core.Log
import io.shoal.core.unless
import java.util.Optional

/** Enrols the phone as soon as there is a network: that is little, and need not wait for a charger. Then a job may come. */
internal class EnrolWorker(context: Context, parameters: WorkerParameters) : Worker(context, parameters) {
    override fun doWork(): Result = try {
        val fleet = Shoal.fleet(applicationContext, inputData.getString(AndroidPlatform.FLEET).orEmpty())
        when (unless(::isStopped) { Optional.ofNullable(fleet.enrol()) }?.orElse(FleetState.Idle)) {
            FleetState.Idle -> {
                fleet.trainSoon()
                Result.success()
            }
            null, is FleetState.Waiting -> Result.retry()
            else -> Result.failure()
        }
    } catch (error: ConfigException) { // the phone has left meanwhile
        LogcatLog.write(Log.Level.ERROR, error.message.orEmpty())
        Result.failure()
    }
}
