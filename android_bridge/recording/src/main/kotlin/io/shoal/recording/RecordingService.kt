package io.shoal.recording

import android.app.Notification
import android.app.NotificationChannel
import android.app.NotificationManager
import android.app.PendingIntent
import android.app.Service
import android.content.Context
import android.content.Intent
import android.content.pm.ServiceInfo
import android.graphics.drawable.Icon
import android.os.Build
import android.os.Handler
import android.os.IBinder
import android.os.Looper
import android.os.PowerManager
import io.shoal.android.Fleet
import io.shoal.android.FleetListener
import io.shoal.android.FleetState
import io.shoal.android.SensorRecorder
import io.shoal.android.Shoal
import io.shoal.core.ConfigException

/**
 * Service that records a fleet's sensors in the foreground, with a notification that has a button
 * to stop, also while the screen is off. If Android has to end it, or refuses it the foreground,
 * the recording so far is stored, and nothing starts it again but [start]. It ends when consent is
 * withdrawn, and twelve hours after the last [start].
 *
 * Start it while the app is in use ([start]): from API 31 on, an app in the background must not
 * start one. An app has one such service: a start for another fleet ends and stores the recording
 * of the first. [start], [stop] and [isRecording] return at once, on any thread. A recording
 * outlives the app's activities; the service does not outlive the app's process.
 *
 * For live windows beside it, an activity watches with a recorder of its own
 * ([SensorRecorder.watch]), which stores nothing.
 */
public class RecordingService : Service() {
    private val withdrawn = FleetListener { if (it is FleetState.Blocked && it.reason == FleetState.Blocked.Reason.CONSENT) end() }
    private var fleet: Fleet? = null
    private var recorder: SensorRecorder? = null
    private val main = Handler(Looper.getMainLooper())
    private var awake: PowerManager.WakeLock? = null

    /** Number of the order that was carried out last. */
    private var lastOrder = 0

    override fun onBind(intent: Intent?): IBinder? = null

    override fun onStartCommand(intent: Intent?, flags: Int, startId: Int): Int {
        val (name, label) = intent?.getStringExtra(FLEET) to intent?.getStringExtra(LABEL)
        lastOrder = startId
        if (intent == null || name == null || intent.action == STOP) return START_NOT_STICKY.also { end() }
        return begin({ show(name, label) }, { record(Shoal.fleet(this, name), label) }) { error ->
            android.util.Log.w("Shoal", "nothing is recorded: $error")
            end()
        }
    }

    /** Store the current recording, and end the service unless a later order waits, which then decides. */
    private fun end() {
        finish()
        stopSelf(lastOrder)
    }

    override fun onDestroy() {
        finish()
        recordedFleet = null
        main.removeCallbacks(lease)
        awake?.takeIf { it.isHeld }?.release()
        awake = null
        super.onDestroy()
    }

    /** Store the current recording. */
    private fun finish() {
        fleet?.removeListener(withdrawn)
        fleet = null
        recorder?.stop()
        recorder = null
    }

    private fun record(next: Fleet, label: String?) {
        if (fleet?.name != next.name) finish() // each fleet has recordings of its own
        val open = recorder ?: next.recorder().also { recorder = it }
        if (open.isRecording) open.label(label) else open.start(label)
        if (fleet == null) next.addListener(withdrawn) { it.run() }
        fleet = next
        recordedFleet = next.name
        main.removeCallbacks(lease)
        lease.run()
    }

    /** Look again and again if there is a recording, and keep the processor awake for it if its sensors need that. */
    private val lease = object : Runnable {
        override fun run() {
            val open = recorder ?: return
            if (!open.isRecording) return end() // it has ended by itself
            if (open.needsWakeLock) lock().acquire(2 * LEASE_MS)
            main.postDelayed(this, LEASE_MS)
        }
    }

    private fun lock(): PowerManager.WakeLock = awake ?: (getSystemService(Context.POWER_SERVICE) as PowerManager)
        .newWakeLock(PowerManager.PARTIAL_WAKE_LOCK, "shoal:recording")
        .also {
            it.setReferenceCounted(false)
            awake = it
        }

    private fun show(fleet: String, label: String?) {
        val manager = getSystemService(Context.NOTIFICATION_SERVICE) as NotificationManager
        val channel = NotificationChannel(CHANNEL, getString(R.string.shoal_recording_channel_name), NotificationManager.IMPORTANCE_LOW)
        channel.setDescription(getString(R.string.shoal_recording_channel_description))
        manager.createNotificationChannel(channel)
        val stop = PendingIntent.getService(this, 0, order(this, fleet, null).setAction(STOP), PendingIntent.FLAG_IMMUTABLE)
        val button = Notification.Action.Builder(Icon.createWithResource(this, R.drawable.shoal_recording), getString(R.string.shoal_recording_stop), stop)
        val notification = Notification.Builder(this, CHANNEL)
            .setContentTitle(getString(R.string.shoal_recording_title))
            .setContentText(if (label == null) getString(R.string.shoal_recording_text) else getString(R.string.shoal_recording_labelled, label))
            .setSmallIcon(R.drawable.shoal_recording)
            .setOngoing(true)
            .setOnlyAlertOnce(true)
            .addAction(button.build())
            .setContentIntent(packageManager.getLaunchIntentForPackage(packageName)?.let { PendingIntent.getActivity(this, 0, it, PendingIntent.FLAG_IMMUTABLE) })
            .build()
        val type = typeIn(Build.VERSION.SDK_INT)
        if (type == null) startForeground(ID, notification) else startForeground(ID, notification, type)
    }

    public companion object {
        private const val CHANNEL = "io.shoal.recording"
        private const val ID = 0x5A0A2
        private const val FLEET = "io.shoal.recording.FLEET"
        private const val LABEL = "io.shoal.recording.LABEL"
        private const val STOP = "io.shoal.recording.STOP"

        /** Interval of looks at the recording. */
        private const val LEASE_MS = 5L * 60 * 1000

        /**
         * Begin to record with this [label], or without one. A call during a recording changes the
         * label. Nothing has started if it throws. If Android then refuses the foreground or a
         * sensor, [isRecording] becomes false within seconds, and the log has the reason.
         *
         * @throws ConfigException there is no consent, the fleet's [io.shoal.android.RecordedWindows]
         *   have no such class, the phone lacks a sensor, or the app lacks its permission
         * @throws IllegalStateException from API 31 on, the app is in the background
         */
        @JvmStatic
        @JvmOverloads
        @Throws(ConfigException::class)
        public fun start(context: Context, fleet: Fleet, label: String? = null) {
            request(fleet, label) { context.startForegroundService(order(context, fleet.name, label)) }
        }

        /** Check that a recording can begin, and call [start]; [isRecording] is true from then on. */
        internal fun request(fleet: Fleet, label: String?, start: () -> Unit) {
            fleet.recorder().checkStart(label)
            val before = recordedFleet
            recordedFleet = fleet.name // first, because the service may fail on another thread meanwhile
            try {
                start()
            } catch (error: RuntimeException) {
                recordedFleet = before
                throw error
            }
        }

        /** Name of the fleet for which the service records, or is about to. */
        @Volatile
        private var recordedFleet: String? = null

        /**
         * Return true if the service records for [fleet], or [start] has just asked it to; for a
         * screen that is shown again. A recording that ends by itself, such as on a full disk, shows
         * within five minutes.
         */
        @JvmStatic
        public fun isRecording(fleet: Fleet): Boolean = recordedFleet == fleet.name

        /**
         * End the recording, and store it; without one nothing happens. Calls of [start] and [stop]
         * take effect in their order. [isRecording] is false once Android has ended the service,
         * which it does on the main thread.
         */
        @JvmStatic
        public fun stop(context: Context) {
            val service = Intent(context, RecordingService::class.java)
            halt({ context.startService(service.setAction(STOP)) }, { context.stopService(service) })
        }

        /**
         * Give the service the [order] to end, which it carries out after those before it: Android ends
         * an app that stops a service before it has asked for the foreground. An app in the background
         * may give no order if no service records; then [stop] it.
         */
        internal fun halt(order: () -> Unit, stop: () -> Unit) {
            try {
                order()
            } catch (_: IllegalStateException) {
                stop()
            }
        }

        private fun order(context: Context, fleet: String, label: String?): Intent =
            Intent(context, RecordingService::class.java).putExtra(FLEET, fleet).putExtra(LABEL, label)
    }
}

/**
 * Show the notification, and then record; [end] the service if one of them fails. Android ends an
 * app whose service does not ask for the foreground within seconds, so that is first. It may refuse
 * it from API 31 on to an app in the background, and from API 34 on to one without the permissions
 * of its type. Return if Android starts the service again after it had to end it: from the
 * background that would be refused.
 */
internal fun begin(show: () -> Unit, record: () -> Unit, end: (Exception) -> Unit): Int {
    try {
        show()
        record() // there may be no consent any more, or the phone lacks a sensor
    } catch (error: Exception) { // nothing here is worth the app's process
        end(error)
    }
    return Service.START_NOT_STICKY
}

/** Return the service's type in a version of Android, or null if only the manifest can say it. */
internal fun typeIn(sdk: Int): Int? = if (sdk >= 34) ServiceInfo.FOREGROUND_SERVICE_TYPE_HEALTH else null
