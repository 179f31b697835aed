package io.shoal.foreground

import android.app.Notification
import android.app.NotificationChannel
import android.app.NotificationManager
import android.content.Context
import android.content.pm.ServiceInfo
import android.graphics.drawable.Icon
import androidx.work.ForegroundInfo
import androidx.work.WorkManager
import io.shoal.android.ForegroundJob
import io.shoal.android.ForegroundJobs

/**
 * Notification of a job in the foreground, with the progress of the training and a button that ends
 * the job. It is looked up by its name.
 */
internal class TrainingNotification : ForegroundJobs {
    override fun info(context: Context, job: ForegroundJob): ForegroundInfo {
        val manager = context.getSystemService(Context.NOTIFICATION_SERVICE) as NotificationManager
        val channel = NotificationChannel(CHANNEL, context.getString(R.string.shoal_channel_name), NotificationManager.IMPORTANCE_LOW)
        channel.setDescription(context.getString(R.string.shoal_channel_description))
        manager.createNotificationChannel(channel)
        val notification = notification(context, job)
        return if (job.typed) {
            ForegroundInfo(NOTIFICATION_ID, notification, ServiceInfo.FOREGROUND_SERVICE_TYPE_DATA_SYNC)
        } else {
            ForegroundInfo(NOTIFICATION_ID, notification)
        }
    }

    private fun notification(context: Context, job: ForegroundJob): Notification {
        val text = when (val percent = percentOf(job)) {
            null -> context.getString(R.string.shoal_notification_text)
            else -> context.getString(R.string.shoal_notification_progress, percent)
        }
        // The button ends this job alone: the phone goes on taking part, and the next job is due at its usual time.
        val cancel = Notification.Action.Builder(
            Icon.createWithResource(context, R.drawable.shoal_training),
            context.getString(R.string.shoal_notification_cancel),
            WorkManager.getInstance(context).createCancelPendingIntent(job.id),
        )
        return Notification.Builder(context, CHANNEL)
            .setContentTitle(context.getString(R.string.shoal_notification_title))
            .setContentText(text)
            .setSmallIcon(R.drawable.shoal_training)
            .setProgress(100, percentOf(job) ?: 0, percentOf(job) == null)
            .setOnlyAlertOnce(true)
            .setOngoing(true)
            .addAction(cancel.build())
            .build()
    }

    private fun percentOf(job: ForegroundJob): Int? = if (job.of <= 0) null else (100 * job.step / job.of).toInt().coerceIn(0, 100)

    private companion object {
        const val CHANNEL = "io.shoal.training"
        const val NOTIFICATION_ID = 0x5A0A1
    }
}
