package io.shoal.android

import android.content.Context
import android.hardware.Sensor
import android.hardware.SensorEvent
import android.hardware.SensorEventListener
import android.hardware.SensorManager
import android.os.Handler
import android.os.HandlerThread
import io.shoal.core.ConfigException
import java.io.Closeable

/** Is told what came of a recording. */
public fun interface RecordingListener {
    /** So many seconds were kept; 0 where nothing was. */
    public fun onKept(seconds: Double)
}

/**
 * Records the spec's sensors while the user does something that has a name: [start] with the label, [stop] to keep it. Recordings stay on
 * the phone, where no backup takes them; they are written by a thread of the library's. Android gives an app no sensors in the background:
 * record in an activity, or in a foreground service of the app's own. [Fleet.recorder] makes one.
 */
public class SensorRecorder internal constructor(
    context: Context,
    private val fleet: Fleet,
    private val spec: WindowSpec,
    private val maxBytes: Long,
) : Closeable {
    private val folder = RecordingFolder(fleet.home.recordings)
    private val manager = context.getSystemService(Context.SENSOR_SERVICE) as SensorManager
    private val sensors = spec.sensors.map { manager.getDefaultSensor(it.type) ?: throw ConfigException("this phone has no ${it.channel}") }
    private var current: Take? = null

    init {
        if (spec.rateHz > MAX_RATE_HZ) throw ConfigException("rateHz is ${spec.rateHz}, expected at most $MAX_RATE_HZ")
        fleet.consent.whenWithdrawn(::discard)
    }

    /** Whether it records now. */
    public val recording: Boolean get() = current != null

    /**
     * Begins to record what [label] names, or without one what the user does not name; what was being recorded is kept first.
     *
     * @throws ConfigException there is no consent, the spec has no such class, or Android does not give the sensors
     */
    @JvmOverloads
    @Throws(ConfigException::class)
    public fun start(label: String? = null) {
        if (!fleet.consent.granted) throw ConfigException("fleet ${fleet.name}: nobody has consented to recordings")
        if (label != null && label !in spec.classes) throw ConfigException("label '$label', expected one of ${spec.classes}")
        stop()
        val take = Take(label.orEmpty())
        val periodUs = (1_000_000 / spec.rateHz).toInt()
        for (sensor in sensors) {
            if (!manager.registerListener(take, sensor, periodUs, take.handler)) {
                take.end()
                throw ConfigException("Android does not give this app its sensor ${sensor.type}")
            }
        }
        current = take
    }

    /** Ends the recording, and keeps it unless consent is withdrawn meanwhile; [listener] is told by the thread that writes. */
    @JvmOverloads
    public fun stop(listener: RecordingListener? = null) {
        val take = ended()
        fleet.disk.execute {
            val seconds = take?.let(::keep) ?: 0.0
            listener?.onKept(seconds)
        }
    }

    private fun keep(take: Take): Double {
        if (!fleet.consent.granted) return 0.0
        val stretches = resample(take.tracks, spec.rateHz).filter { it.rows >= spec.length }
        stretches.forEach { folder.add(it, spec.channels, take.label) }
        folder.trim(maxBytes)
        return stretches.sumOf { it.rows } / spec.rateHz
    }

    private fun discard() {
        ended()
    }

    private fun ended(): Take? = current.also {
        current = null
        it?.end()
    }

    override fun close() {
        stop()
    }

    /** One recording; the sensors call it on a thread of its own. */
    private inner class Take(val label: String) : SensorEventListener {
        val tracks = spec.sensors.map { SensorTrack() }
        private val thread = HandlerThread("shoal-sensors").apply { start() }
        val handler = Handler(thread.looper)

        override fun onSensorChanged(event: SensorEvent) {
            val at = sensors.indexOfFirst { it.type == event.sensor.type }
            if (at >= 0) tracks[at].add(event.timestamp, event.values[0], event.values[1], event.values[2])
        }

        override fun onAccuracyChanged(sensor: Sensor, accuracy: Int) = Unit

        fun end() {
            manager.unregisterListener(this)
            thread.quitSafely()
            thread.join() // what was under way is in the tracks
        }
    }

    private companion object {
        const val MAX_RATE_HZ = 200.0
    }
}
