package io.shoal.android

import android.app.Notification
import android.app.NotificationChannel
import android.app.NotificationManager
import android.content.Context
import android.content.pm.ServiceInfo
import androidx.work.ForegroundInfo

/** What a job in the foreground shows. */
internal fun foregroundInfo(context: Context, rules: ForegroundRules): ForegroundInfo {
    val manager = context.getSystemService(Context.NOTIFICATION_SERVICE) as NotificationManager
    val channel = NotificationChannel(CHANNEL, context.getString(R.string.shoal_channel_name), NotificationManager.IMPORTANCE_LOW)
    channel.setDescription(context.getString(R.string.shoal_channel_description))
    manager.createNotificationChannel(channel)
    val notification = Notification.Builder(context, CHANNEL)
        .setContentTitle(context.getString(R.string.shoal_notification_title))
        .setContentText(context.getString(R.string.shoal_notification_text))
        .setSmallIcon(R.drawable.shoal_training)
        .setOngoing(true)
        .build()
    return if (rules.typed) {
        ForegroundInfo(NOTIFICATION_ID, notification, ServiceInfo.FOREGROUND_SERVICE_TYPE_DATA_SYNC)
    } else {
        ForegroundInfo(NOTIFICATION_ID, notification)
    }
}

private const val CHANNEL = "io.shoal.training"
private const val NOTIFICATION_ID = 0x5A0A1
