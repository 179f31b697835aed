package io.shoal.recording

import android.app.Notification
import android.app.NotificationChannel
import android.app.NotificationManager
import android.app.PendingIntent
import android.content.BroadcastReceiver
import android.content.Context
import android.content.Intent
import android.graphics.drawable.Icon
import io.shoal.android.Fleet
import io.shoal.android.LabelSource
import io.shoal.android.Shoal
import io.shoal.core.ConfigException
import java.text.DateFormat
import java.util.Date

/**
 * Prompt that asks the phone's owner about an activity, by a notification with a button for each
 * answer. A question takes the place of the one before it. It outlives the process, until the phone
 * restarts: an answer starts the app's process, and is stored as by [io.shoal.android.Labels.add].
 * Without consent it is not stored. Android shows a question only if the user allows the app
 * notifications, for which an app must ask from API 33 on.
 */
public object LabelPrompt {
    /**
     * Ask about a long stretch of windows that look alike, if a question is due
     * ([Fleet.takeQuestion]); return true if so. While the user forbids notifications of the app or
     * of questions, return false, and no question counts as asked. The answer labels all of the
     * windows. A question that is swiped away counts as asked, also after a restart. Call it after
     * [Fleet.predictNext], while the app records without a label. It reads files: call it on a worker
     * thread, not on the main thread.
     *
     * @param maxPerDay maximum number of questions a day; 0 for none
     * @throws ConfigException the model or the fleet's folder cannot be used
     */
    @JvmStatic
    @JvmOverloads
    @Throws(ConfigException::class)
    public fun ask(context: Context, fleet: Fleet, maxPerDay: Int = 3): Boolean {
        val manager = context.getSystemService(Context.NOTIFICATION_SERVICE) as NotificationManager
        val question = ifShown(manager.areNotificationsEnabled(), manager.getNotificationChannel(CHANNEL)?.importance) { fleet.takeQuestion(maxPerDay) }
            ?: return false
        val times = DateFormat.getTimeInstance(DateFormat.SHORT)
        val (begin, end) = Pair(times.format(Date(question.fromMs)), times.format(Date(question.untilMs)))
        val text = context.getString(R.string.shoal_prompt_reason, begin, end, question.minutes, question.answers.first())
        show(context, fleet, question.fromMs, question.untilMs, question.answers, text)
        return true
    }

    /**
     * Ask about the time from [fromMs] to before [untilMs] (Unix time in ms). The answer becomes a
     * label of that time; without one there is no label. Returns at once, on any thread. While the
     * user forbids notifications of the app, nothing is shown. An answer that
     * [io.shoal.android.Labels.add] does not take, such as one with a comma, becomes a line of the
     * log.
     *
     * @param answers labels, the likeliest first: Android shows three buttons
     */
    @JvmStatic
    public fun ask(context: Context, fleet: Fleet, fromMs: Long, untilMs: Long, answers: List<String>) {
        val times = DateFormat.getTimeInstance(DateFormat.SHORT)
        show(context, fleet, fromMs, untilMs, answers, context.getString(R.string.shoal_prompt_text, times.format(Date(fromMs)), times.format(Date(untilMs))))
    }

    private fun show(context: Context, fleet: Fleet, fromMs: Long, untilMs: Long, answers: List<String>, text: String) {
        val manager = context.getSystemService(Context.NOTIFICATION_SERVICE) as NotificationManager
        val channel = NotificationChannel(CHANNEL, context.getString(R.string.shoal_prompt_channel_name), NotificationManager.IMPORTANCE_DEFAULT)
        channel.setDescription(context.getString(R.string.shoal_prompt_channel_description))
        manager.createNotificationChannel(channel)
        val notification = Notification.Builder(context, CHANNEL)
            .setContentTitle(context.getString(R.string.shoal_prompt_title))
            .setContentText(text)
            .setSmallIcon(R.drawable.shoal_recording)
            .setAutoCancel(true)
        val icon = Icon.createWithResource(context, R.drawable.shoal_recording)
        answers.take(BUTTONS).forEachIndexed { number, label ->
            val order = LabelReceiver.order(context, fleet.name, fromMs, untilMs, label)
            val flags = PendingIntent.FLAG_IMMUTABLE or PendingIntent.FLAG_UPDATE_CURRENT
            notification.addAction(Notification.Action.Builder(icon, label, PendingIntent.getBroadcast(context, number, order, flags)).build())
        }
        manager.notify(ID, notification.build())
    }

    /**
     * Return the result of [take] if Android shows a question: notifications of the app are
     * [enabled], and those of the channel, whose [importance] is null before the first question.
     */
    internal fun <Q> ifShown(enabled: Boolean, importance: Int?, take: () -> Q?): Q? =
        if (enabled && importance != NotificationManager.IMPORTANCE_NONE) take() else null

    private const val CHANNEL = "io.shoal.prompt"
    private const val BUTTONS = 3
    internal const val ID = 0x5A0A3
}

/**
 * Receiver that stores an answer to [LabelPrompt]. Android creates it, by its name in the manifest.
 */
internal class LabelReceiver : BroadcastReceiver() {
    override fun onReceive(context: Context, intent: Intent) {
        val (fleet, label) = Pair(intent.getStringExtra(FLEET) ?: return, intent.getStringExtra(LABEL) ?: return)
        (context.getSystemService(Context.NOTIFICATION_SERVICE) as NotificationManager).cancel(LabelPrompt.ID)
        val labels = try {
            Shoal.fleet(context, fleet).labels
        } catch (error: ConfigException) { // the phone has left the fleet
            android.util.Log.w("Shoal", "an answer cannot be stored: ${error.message}")
            return
        }
        val pending = goAsync() // Android may end the process once the receiver is done
        try {
            labels.add(label, intent.getLongExtra(FROM, 0), intent.getLongExtra(UNTIL, 0), LabelSource.PROMPT).whenComplete { _, _ -> pending.finish() }
        } catch (error: IllegalArgumentException) { // [LabelPrompt.ask] was given such a label or time
            android.util.Log.w("Shoal", "an answer cannot be stored: ${error.message}")
            pending.finish()
        }
    }

    companion object {
        private const val FLEET = "io.shoal.recording.FLEET"
        private const val LABEL = "io.shoal.recording.LABEL"
        private const val FROM = "io.shoal.recording.FROM"
        private const val UNTIL = "io.shoal.recording.UNTIL"

        fun order(context: Context, fleet: String, fromMs: Long, untilMs: Long, label: String): Intent =
            Intent(context, LabelReceiver::class.java)
                .putExtra(FLEET, fleet)
                .putExtra(LABEL, label)
                .putExtra(FROM, fromMs)
                .putExtra(UNTIL, untilMs)
    }
}
