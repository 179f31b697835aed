package io.shoal.android

import android.content.Context
import android.content.pm.PackageManager
import android.hardware.Sensor
import android.hardware.SensorEvent
import android.hardware.SensorEventListener
import android.hardware.SensorManager
import android.os.Build
import android.os.Handler
import android.os.HandlerThread
import android.os.SystemClock
import io.shoal.core.ConfigException
import io.shoal.core.Log
import io.shoal.core.Tensor
import java.io.Closeable
import java.io.IOException

/** Is told what came of a recording. */
public fun interface RecordingListener {
    /** So many seconds were kept; 0 where nothing was. */
    public fun onKept(seconds: Double)
}

/** Is told of each window that is measured. */
public fun interface WindowListener {
    /** A window (1, channels, length) float32, as [Fleet.predict] takes one. */
    public fun onWindow(window: Tensor)
}

/**
 * How recordings are made and kept.
 *
 * @param maxBytes the oldest recordings are deleted beyond this
 * @param keepDays recordings are deleted after so many days
 * @param batchSeconds Android may hand samples over so much later, all at once, which saves energy; 0: at once
 */
public class RecordingOptions @JvmOverloads constructor(
    public val maxBytes: Long = 64L * 1024 * 1024,
    public val keepDays: Int = 90,
    public val batchSeconds: Double = 2.0,
) {
    init {
        require(maxBytes > 0 && keepDays > 0 && batchSeconds in 0.0..60.0) {
            "maxBytes $maxBytes, keepDays $keepDays, batchSeconds $batchSeconds: expected more than 0, more than 0, and 0 to 60"
        }
    }
}

/**
 * Records the spec's sensors: [start] with the label of what is being done, or without one; [stop] to keep it. A recording grows on disk
 * while it is made, by a thread of its own, where no backup takes it: what a kill ends is kept up to the last few seconds. Android gives an
 * app no sensors in the background: record in an activity, or by `RecordingService` of `shoal-android-recording`. [Fleet.recorder] makes one.
 */
public class SensorRecorder internal constructor(
    context: Context,
    private val fleet: Fleet,
    private val spec: WindowSpec,
    private val options: RecordingOptions,
) : Closeable {
    private val folder = RecordingFolder(fleet.home.recordings)
    private val manager = context.getSystemService(Context.SENSOR_SERVICE) as SensorManager
    private val sensors = spec.sensors.map { manager.getDefaultSensor(it.type) ?: throw ConfigException("this phone has no ${it.channel}") }
    private val attitude = if (spec.worldFrame) {
        manager.getDefaultSensor(Sensor.TYPE_GAME_ROTATION_VECTOR) ?: throw ConfigException("this phone does not know how it is held: no worldFrame")
    } else {
        null
    }

    @Volatile
    private var current: Take? = null

    @Volatile
    private var watcher: WindowListener? = null

    /** What ends a recording when consent is withdrawn. */
    private val withdrawn: () -> Unit = {
        discard()
        watchOn()
    }

    init {
        val allowed = context.checkSelfPermission(HIGH_RATE) == PackageManager.PERMISSION_GRANTED
        checkRate(spec.rateHz, Build.VERSION.SDK_INT, allowed)
        fleet.disk.execute(::tidy)
    }

    /** Whether it records now. */
    public val isRecording: Boolean get() = current?.keeps == true

    /**
     * Begins to record what [label] names, or without one what nobody has named yet; what was being recorded is kept first.
     *
     * @throws ConfigException there is no consent, the spec has no such class, or Android does not give the sensors
     */
    @JvmOverloads
    @Throws(ConfigException::class)
    public fun start(label: String? = null) {
        if (!fleet.consent.isGranted) throw ConfigException("fleet ${fleet.name}: nobody has consented to recordings")
        checkLabel(label)
        current?.end(keep = true, null)
        current = null
        begin(Take(label.orEmpty()))
        fleet.consent.whenWithdrawn(withdrawn)
        if (!fleet.consent.isGranted) withdrawn() // meanwhile
    }

    /**
     * Has [listener] told of each window as it is measured, whether it is recorded or not, for [Fleet.predict]; null: no more. Nothing is kept by
     * this, so that it needs no consent. The listener is called by a thread of the recorder's.
     *
     * @throws ConfigException Android does not give the sensors
     */
    @Throws(ConfigException::class)
    public fun watch(listener: WindowListener?) {
        watcher = listener
        val open = current
        if (listener != null && open == null) begin(Take(null))
        if (listener == null && open?.keeps == false) discard()
    }

    private fun begin(take: Take) {
        val latencyUs = if (watcher != null) 0 else (options.batchSeconds * 1_000_000).toInt()
        val periodUs = (1_000_000 / spec.rateHz).toInt()
        for (sensor in sensors + listOfNotNull(attitude)) {
            if (!manager.registerListener(take, sensor, periodUs, latencyUs, take.handler)) {
                take.end(keep = false, null)
                throw ConfigException("Android does not give this app its sensor ${sensor.type}: it may lack a permission")
            }
        }
        current = take
    }

    /**
     * From now on it is [label] that is recorded, or without one what nobody names.
     *
     * @throws ConfigException the spec has no such class
     */
    @Throws(ConfigException::class)
    public fun label(label: String?) {
        checkLabel(label)
        current?.relabel(label.orEmpty())
    }

    /** Ends the recording, and keeps it unless consent is withdrawn meanwhile. Returns at once; [listener] is told by the thread that writes. */
    @JvmOverloads
    public fun stop(listener: RecordingListener? = null) {
        val take = current
        if (take?.keeps != true) return fleet.disk.execute { listener?.onKept(0.0) }
        current = null
        fleet.consent.forget(withdrawn)
        take.end(keep = true, listener)
        watchOn()
    }

    /** Who watches goes on to when a recording ends. */
    private fun watchOn() {
        try {
            if (watcher != null) begin(Take(null))
        } catch (error: ConfigException) {
            LogcatLog.write(Log.Level.WARNING, "windows are watched no more: ${error.message}")
        }
    }

    private fun checkLabel(label: String?) {
        if (label != null && label !in spec.classes) throw ConfigException("label '$label', expected one of ${spec.classes}")
    }

    private fun discard() {
        fleet.consent.forget(withdrawn)
        current?.end(keep = false, null)
        current = null
    }

    private fun tidy() {
        if (!fleet.consent.isGranted) return
        try {
            folder.recover()
            folder.trim(options.maxBytes, System.currentTimeMillis() - options.keepDays * DAY_MS)
        } catch (error: IOException) {
            LogcatLog.write(Log.Level.ERROR, "recordings: $error")
        }
    }

    override fun close() {
        watcher = null
        stop()
        discard()
    }

    /** One recording; the sensors call it on a thread of its own, which also writes. */
    private inner class Take(label: String?) : SensorEventListener {
        /** Whether it is a recording; else what is measured is only watched. */
        val keeps = label != null
        private val thread = HandlerThread("shoal-sensors").apply { start() }
        private val world = if (spec.worldFrame) WorldFrame() else null
        private val turned = FloatArray(3)
        private val epochNs = System.currentTimeMillis() * 1_000_000 - SystemClock.elapsedRealtimeNanos()
        private val stream = label?.let { RecordingStream(folder, spec, it, epochNs) { fleet.consent.isGranted } }
        private val windows = LiveWindows(spec) { watcher?.onWindow(it) }
        private val grid = SensorGrid(spec.sensors.map { GridTrack(it.axes, it.holdNs) }, spec.rateHz, Both(stream, windows))
        val handler = Handler(thread.looper)

        override fun onSensorChanged(event: SensorEvent) {
            if (event.sensor.type == attitude?.type) return world!!.turn(event.values)
            val at = sensors.indexOfFirst { it.type == event.sensor.type }
            if (at < 0) return
            if (world == null || spec.sensors[at].axes == 1) return grid.add(at, event.timestamp, event.values)
            if (!world.known) return
            world.apply(event.values, turned)
            grid.add(at, event.timestamp, turned)
        }

        override fun onAccuracyChanged(sensor: Sensor, accuracy: Int) = Unit

        fun relabel(label: String) {
            handler.post { stream?.relabel(label) }
        }

        fun end(keep: Boolean, listener: RecordingListener?) {
            val flushes = keep && options.batchSeconds > 0 && manager.flush(this)
            handler.postDelayed({
                manager.unregisterListener(this)
                val seconds = stream?.end(keep) ?: 0.0
                thread.quitSafely()
                tidy()
                listener?.onKept(seconds)
            }, if (flushes) FLUSH_MS else 0L)
            if (!keep) manager.unregisterListener(this)
        }
    }

    private companion object {
        private const val HIGH_RATE = "android.permission.HIGH_SAMPLING_RATE_SENSORS"
        private const val FLUSH_MS = 300L
        private const val DAY_MS = 24L * 60 * 60 * 1000
    }
}

/** @throws ConfigException Android gives this app no sensor so often: above 200 Hz it needs a permission from API 31 on */
internal fun checkRate(rateHz: Double, sdk: Int, allowed: Boolean) {
    if (rateHz > 200 && sdk >= 31 && !allowed) {
        throw ConfigException("rateHz is $rateHz: above 200 the app's manifest needs the permission HIGH_SAMPLING_RATE_SENSORS")
    }
}
