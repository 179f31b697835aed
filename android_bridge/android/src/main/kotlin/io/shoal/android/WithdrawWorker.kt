package io.shoal.android

import android.content.Context
import androidx.work.Worker
import androidx.work.WorkerParameters
import io.shoal.core.Log
import io.shoal.core.ShoalException

/**
 * Worker that tells the aggregator, as soon as there is a network, that the owner has withdrawn
 * consent, until the aggregator confirms it.
 */
internal class WithdrawWorker(context: Context, parameters: WorkerParameters) : Worker(context, parameters) {
    override fun doWork(): Result = try {
        val fleet = Shoal.fleet(applicationContext, inputData.getString(AndroidPlatform.FLEET).orEmpty())
        if (fleet.tellWithdrawal(::isStopped)) Result.success() else Result.retry()
    } catch (error: ShoalException) {
        LogcatLog.write(Log.Level.WARNING, error.message.orEmpty())
        if (stateAfter(error) is FleetState.Waiting) Result.retry() else Result.failure() // the phone has left the fleet
    }
}
