package io.shoal.android

import android.content.Context
import androidx.work.Worker
import androidx.work.WorkerParameters
import io.shoal.core.ConfigException

/** Comes every few hours, and does nothing but add a job to the chain of [RoundWorker], unless one is waiting or running there. */
internal class DueWorker(context: Context, parameters: WorkerParameters) : Worker(context, parameters) {
    override fun doWork(): Result = try {
        Shoal.fleet(applicationContext, inputData.getString(AndroidPlatform.FLEET).orEmpty()).trainSoon()
        Result.success()
    } catch (error: ConfigException) { // the phone has left meanwhile, or the app no longer has the class of its windows
        LogcatLog.write(io.shoal.core.Log.Level.ERROR, error.message.orEmpty())
        Result.failure()
    }
}
