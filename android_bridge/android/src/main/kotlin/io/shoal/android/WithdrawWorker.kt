package io.shoal.android

import android.content.Context
import androidx.work.Worker
import androidx.work.WorkerParameters
import io.shoal.core.ConfigException
import io.shoal.core.LinkException
import io.shoal.core.Log

/**
 * Worker that tells the aggregator, as soon as there is a network, that the owner has withdrawn
 * consent, until the aggregator confirms it.
 */
internal class WithdrawWorker(context: Context, parameters: WorkerParameters) : Worker(context, parameters) {
    override fun doWork(): Result = try {
        val fleet = Shoal.fleet(applicationContext, inputData.getString(AndroidPlatform.FLEET).orEmpty())
        if (fleet.tellWithdrawal(::isStopped)) Result.success() else Result.retry()
    } catch (error: LinkException) {
        LogcatLog.write(Log.Level.WARNING, error.message.orEmpty())
        Result.retry()
    } catch (error: ConfigException) { // the phone has left the fleet
        LogcatLog.write(Log.Level.ERROR, error.message.orEmpty())
        Result.failure()
    }
}
