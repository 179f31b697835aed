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
import io.shoal.core.ConfigException
import io.shoal.core.InternalShoalApi
import io.shoal.core.Log
import io.shoal.core.ShoalException
import io.shoal.core.Tensor
import java.io.Closeable
import java.io.IOException
import java.time.Duration
import java.util.concurrent.CompletableFuture

/**
 * Listener for the windows that are measured. What it throws, such as what [Fleet.predictNext] throws
 * before the first model, becomes a line of the log; the recording goes on, and so do the windows.
 */
public fun interface WindowListener {
    /**
     * Called with a window (1, channels, length) float32 and the time of its first sample, for
     * [Fleet.predictNext]. The thread that calls it also writes the recording. It may take as long
     * as [WindowSpec.stride] samples do; samples of a slower one wait, and Android drops those for
     * which it has no room: there the recording is cut, and windows begin anew.
     */
    @Throws(ShoalException::class)
    public fun onWindow(window: Tensor, beginNs: Long)
}

/**
 * Options of recordings.
 *
 * @param maxBytes maximum size of all recordings; the oldest are deleted beyond it
 * @param retention age at which recordings are deleted, and labels of times before all of them
 * @param batch maximum delay with which Android may deliver samples, all at once, to save
 *   energy; 0 for none
 * @throws IllegalArgumentException [maxBytes] is not above 0, [retention] not above 0 or over 100
 *   years, [batch] below 0 or over a minute
 */
public class RecordingOptions @JvmOverloads constructor(
    public val maxBytes: Long = 64L * 1024 * 1024,
    public val retention: Duration = Duration.ofDays(90),
    public val batch: Duration = Duration.ofSeconds(2),
) {
    init {
        require(maxBytes > 0) { "maxBytes must be above 0, got $maxBytes" }
        require(retention in Duration.ofMillis(1)..Duration.ofDays(36_500)) { "retention must be above 0 and at most 100 years, got $retention" }
        require(batch in Duration.ZERO..Duration.ofMinutes(1)) { "batch must be between 0 and a minute, got $batch" }
    }

    /** Delete what is too old or too much at [nowMs] (Unix time). */
    internal fun apply(recordings: RecordingFolder, labels: Labels, nowMs: Long) {
        val sinceMs = nowMs - retention.toMillis()
        recordings.trim(maxBytes, sinceMs)
        labels.forget(recordings.oldestMs() ?: sinceMs)
    }

    override fun equals(other: Any?): Boolean = other is RecordingOptions && toString() == other.toString()

    override fun hashCode(): Int = toString().hashCode()

    override fun toString(): String = "at most $maxBytes bytes, for $retention, in batches of $batch"
}

/**
 * Recorder of the spec's sensors: [start] with the label of the current activity, or without one,
 * and [stop] to keep the recording. It grows on disk while it is made, by a thread of its own,
 * outside of backups. After a kill, all but the last few seconds are kept. Android gives an app no
 * sensors in the background: record in an activity, or by `RecordingService` of
 * `shoal-android-recording`. A recording of which the app says nothing for twelve hours, by [start]
 * or [label], ends by itself. Functions return at once; call them on one thread, such as the main
 * thread. Get a recorder from [Fleet.recorder].
 */
public class SensorRecorder internal constructor(
    context: Context,
    private val fleet: Fleet,
    private val spec: WindowSpec,
    private val options: RecordingOptions,
) : Closeable {
    private val folder = RecordingFolder { fleet.home.recordings }
    private val manager = context.getSystemService(Context.SENSOR_SERVICE) as SensorManager

    init {
        fun isGranted(permission: String) = context.checkSelfPermission(permission) == PackageManager.PERMISSION_GRANTED
        checkRate(spec.rateHz, Build.VERSION.SDK_INT, isGranted(HIGH_RATE))
        checkHeartRate(spec.sensors, Build.VERSION.SDK_INT, context.applicationInfo.targetSdkVersion, ::isGranted)
    }

    private val sensors = spec.sensors.map { sensorOf(it.type) ?: throw ConfigException("this phone has no ${it.channel}") }
    private val attitude = if (spec.worldFrame) {
        sensorOf(Sensor.TYPE_GAME_ROTATION_VECTOR) ?: throw ConfigException("worldFrame: this phone has no rotation sensor; set it to false")
    } else {
        null
    }

    @Volatile
    private var current: Take? = null

    @Volatile
    private var watcher: WindowListener? = null

    /** Function that ends a recording when consent is withdrawn. */
    private val withdrawn: () -> Unit = {
        discard()
        resumeWatching()
    }

    init {
        fleet.disk.execute(::tidy)
    }

    private fun sensorOf(type: Int): Sensor? =
        chosenSensor(manager.getDefaultSensor(type, true), manager.getDefaultSensor(type), Sensor::getFifoMaxEventCount)

    /**
     * True if samples are lost while the processor sleeps: one of the sensors has no queue that
     * wakes it.
     */
    @InternalShoalApi
    public val needsWakeLock: Boolean get() = (sensors + listOfNotNull(attitude)).any { !it.isWakeUpSensor }

    /** True if it records now. */
    public val isRecording: Boolean get() = current?.keeps == true

    /**
     * Begin to record with this [label], or without one. A recording that is under way is stored
     * first.
     *
     * @throws ConfigException there is no consent, the spec has no such class, or Android does not
     *   give the sensors
     */
    @JvmOverloads
    @Throws(ConfigException::class)
    public fun start(label: String? = null) {
        checkStart(label)
        current?.end(keep = true)
        current = null
        begin(Take(label.orEmpty()))
        fleet.consent.whenWithdrawn(withdrawn)
        if (!fleet.consent.isGranted) withdrawn() // it was withdrawn meanwhile
    }

    /**
     * Check that [start] may record with this [label].
     *
     * @throws ConfigException there is no consent, or the spec has no such class
     */
    @InternalShoalApi
    @Throws(ConfigException::class)
    public fun checkStart(label: String?) {
        if (!fleet.consent.isGranted) throw ConfigException("fleet ${fleet.name}: recordings need consent; call consent.grant first")
        checkLabel(label)
    }

    /**
     * Call [listener] with each window that is measured, recorded or not, for [Fleet.predictNext]; null
     * to stop. This stores nothing, so it needs no consent. The listener is called on a thread of
     * the recorder. A recording that began before keeps the delay of [RecordingOptions.batch], and
     * its windows come as late: for windows at once, watch first and [start] then.
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
        val latencyUs = if (watcher != null) 0 else (options.batch.toMillis() * 1000).toInt()
        val periodUs = (1_000_000 / spec.rateHz).toInt()
        for (sensor in sensors + listOfNotNull(attitude)) {
            if (!manager.registerListener(take, sensor, periodUs, latencyUs, take.handler)) {
                take.end(keep = false)
                val name = spec.sensors.firstOrNull { it.type == sensor.type }?.channel ?: "rotation"
                throw ConfigException("Android does not give this app the sensor $name; close recorders that are not needed")
            }
        }
        current = take
    }

    /**
     * Change the label of the samples from now on; null for no label.
     *
     * @throws ConfigException the spec has no such class
     */
    @Throws(ConfigException::class)
    public fun label(label: String?) {
        checkLabel(label)
        current?.relabel(label.orEmpty())
    }

    /**
     * End the recording, and store it unless consent is withdrawn meanwhile. Returns at once; the
     * thread that writes completes the result: number of seconds that are on disk and outlive the
     * process, 0 without a recording. Do not wait for the result on the main thread.
     */
    public fun stop(): CompletableFuture<Double> {
        val take = current
        if (take?.keeps != true) return CompletableFuture.completedFuture(0.0)
        current = null
        fleet.consent.forget(withdrawn)
        return take.end(keep = true).also { resumeWatching() }
    }

    /** Call the listener for new windows again, after a recording has ended. */
    private fun resumeWatching() {
        try {
            if (watcher != null) begin(Take(null))
        } catch (error: ConfigException) {
            LogcatLog.write(Log.Level.WARNING, "Listener for windows is no longer called: ${error.message}")
        }
    }

    private fun checkLabel(label: String?) {
        if (label != null && label !in spec.classes) throw ConfigException("label must be one of ${spec.classes}, got '$label'")
    }

    private fun discard() {
        fleet.consent.forget(withdrawn)
        current?.end(keep = false)
        current = null
    }

    private fun tidy() {
        if (!fleet.consent.isGranted) return
        try {
            folder.recover()
            options.apply(folder, fleet.labels, System.currentTimeMillis())
        } catch (error: IOException) {
            LogcatLog.write(Log.Level.ERROR, "recordings cannot be tidied: $error")
        }
    }

    /** End the recording, as [stop] does, and stop calling the listener for windows. */
    override fun close() {
        watcher = null
        stop()
        discard()
    }

    /** Recording; the sensors call it on a thread of its own, which also writes. */
    private inner class Take(label: String?) : SensorEventListener {
        /** True if it is a recording; otherwise windows are measured for a listener alone. */
        val keeps = label != null
        private val thread = HandlerThread("shoal-sensors").apply { start() }
        private val world = if (spec.worldFrame) WorldFrame() else null
        private val turned = FloatArray(3)
        private val epochNs = sensorEpochNs()
        private val stream = label?.let { RecordingStream(folder, spec, it, epochNs) { fleet.consent.isGranted } }
        private val windows = LiveWindows(spec) { window, beginNs -> watcher?.onWindow(window, beginNs) }
        private val grid = SensorGrid(spec.sensors.map { GridTrack(it.axes, it.holdNs) }, spec.rateHz, TwoSinks(stream, windows))
        val handler = Handler(thread.looper)

        override fun onSensorChanged(event: SensorEvent) {
            if (stream?.isOver == true && current === this) {
                stop()
                return
            }
            if (event.sensor.type == attitude?.type) return world!!.turn(event.values)
            val at = sensors.indexOfFirst { it.type == event.sensor.type }
            if (at < 0) return
            if (world == null || spec.sensors[at].axes == 1) return grid.add(at, event.timestamp, event.values)
            if (!world.isKnown) return
            world.apply(event.values, turned)
            grid.add(at, event.timestamp, turned)
        }

        override fun onAccuracyChanged(sensor: Sensor, accuracy: Int) = Unit

        fun relabel(label: String) {
            handler.post { stream?.relabel(label) }
        }

        fun end(keep: Boolean): CompletableFuture<Double> {
            val stored = CompletableFuture<Double>()
            val flushes = keep && !options.batch.isZero && manager.flush(this)
            handler.postDelayed({
                manager.unregisterListener(this)
                val seconds = stream?.end(keep) ?: 0.0
                thread.quitSafely()
                tidy()
                stored.complete(seconds)
            }, if (flushes) FLUSH_MS else 0L)
            if (!keep) manager.unregisterListener(this)
            return stored
        }
    }

    private companion object {
        private const val HIGH_RATE = "android.permission.HIGH_SAMPLING_RATE_SENSORS"
        private const val FLUSH_MS = 300L
    }
}

/**
 * Return the wake-up version of a sensor if it has a queue of its own, else the usual one: without
 * a queue it would wake the processor at each sample.
 */
internal fun <S> chosenSensor(wakeUp: S?, usual: S?, queueLength: (S) -> Int): S? = wakeUp?.takeIf { queueLength(it) > 0 } ?: usual

/**
 * Check that Android gives this app samples so often: above 200 Hz it needs a permission from API
 * 31 on.
 *
 * @throws ConfigException the permission is missing
 */
internal fun checkRate(rateHz: Double, sdk: Int, allowed: Boolean) {
    if (rateHz > 200 && sdk >= 31 && !allowed) {
        throw ConfigException("rateHz $rateHz: above 200 Hz the app's manifest needs the permission HIGH_SAMPLING_RATE_SENSORS")
    }
}

/**
 * Check that Android gives this app the heart rate, if it is among [sensors]. Health permissions are
 * those of apps with the [target] API 36 on such a phone; all others have that for body sensors.
 *
 * @throws ConfigException the permission is missing; Android then hides the sensor, too
 */
internal fun checkHeartRate(sensors: List<RecordedSensor>, sdk: Int, target: Int, isGranted: (String) -> Boolean) {
    val permission = if (sdk >= 36 && target >= 36) "android.permission.health.READ_HEART_RATE" else "android.permission.BODY_SENSORS"
    if (RecordedSensor.HEART_RATE in sensors && !isGranted(permission)) {
        throw ConfigException("heart_rate: the app lacks the permission $permission; name it in the manifest, and ask the user for it before a recording")
    }
}
