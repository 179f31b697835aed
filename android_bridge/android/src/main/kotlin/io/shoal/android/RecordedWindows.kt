package io.shoal.android

import android.content.Context
import android.hardware.Sensor
import io.shoal.core.DataException
import io.shoal.core.Windows
import io.shoal.core.windowsOf
import java.io.File

/**
 * What the fleet's model looks at; the same as the bundle's window (`shoal export inspect` shows it), or the phone declines its plans.
 *
 * @param classes names of the classes, in the bundle's order
 * @param length samples in a window
 * @param stride samples from one window to the next
 * @param rateHz samples a second
 * @param sensors what [SensorRecorder] records, the channels of each in this order
 * @param worldFrame whether what has three axes is turned into the world's, so that it does not matter how the phone is carried; that needs a
 *   gyroscope. Channels then begin with `world_`
 * @param steps into how many equal steps a window is cut, each with a class of its own, in a task of sequences; 0 in others
 */
public class WindowSpec @JvmOverloads constructor(
    public val classes: List<String>,
    public val length: Int = 128,
    public val stride: Int = 64,
    public val rateHz: Double = 50.0,
    public val sensors: List<RecordedSensor> = listOf(RecordedSensor.ACCELEROMETER, RecordedSensor.GYROSCOPE),
    public val worldFrame: Boolean = false,
    public val steps: Int = 0,
) {
    init {
        require(classes.isNotEmpty() && classes.none { ',' in it || '\n' in it }) { "classes $classes: names without comma or line break" }
        require(length > 0 && stride > 0 && rateHz > 0 && sensors.isNotEmpty()) { "windows of $length samples every $stride at $rateHz Hz" }
        require(steps == 0 || (steps > 1 && length % steps == 0)) { "windows of $length samples in $steps steps: a number from 2 that divides them" }
    }

    /** The names of the channels, as the header of a recording has them. */
    public val channels: List<String>
        get() = sensors.flatMap { sensor ->
            if (sensor.axes == 1) return@flatMap listOf(sensor.channel)
            listOf("x", "y", "z").map { "${if (worldFrame) "world_" else ""}${sensor.channel}_$it" }
        }
}

/**
 * A sensor. [type] is Android's number of it; a measurement has [axes] numbers, and counts for [holdNs] where the sensor speaks only when
 * something changes.
 */
public enum class RecordedSensor(internal val type: Int, internal val channel: String, internal val axes: Int, internal val holdNs: Long) {
    /** Acceleration with gravity, m/s2. */
    ACCELEROMETER(Sensor.TYPE_ACCELEROMETER, "accelerometer", 3, 0),

    /** Rate of rotation, rad/s. */
    GYROSCOPE(Sensor.TYPE_GYROSCOPE, "gyroscope", 3, 0),

    /** Magnetic field, microtesla. */
    MAGNETOMETER(Sensor.TYPE_MAGNETIC_FIELD, "magnetometer", 3, 0),

    /** Air pressure, hPa. */
    BAROMETER(Sensor.TYPE_PRESSURE, "barometer", 1, 2_000_000_000),

    /** Light, lux. Android says it when it changes. */
    LIGHT(Sensor.TYPE_LIGHT, "light", 1, 600_000_000_000),

    /** Heart rate, beats a minute; of watches. It needs `BODY_SENSORS`, from API 36 on `android.permission.health.READ_HEART_RATE`. */
    HEART_RATE(Sensor.TYPE_HEART_RATE, "heart_rate", 1, 10_000_000_000),
}

/** Windows cut from what [SensorRecorder] recorded. An app extends it with its own [spec], and enrols with that class. */
public abstract class RecordedWindows(public val spec: WindowSpec) : WindowSource {
    @Throws(DataException::class)
    override fun load(context: Context, fleet: String): Windows? = load(Home.of(File(context.noBackupFilesDir, "shoal"), fleet))

    internal fun load(home: Home): Windows? {
        val folder = RecordingFolder(home.recordings).apply { recover() }
        val recordings = folder.read(spec.channels, spec.classes, spec.rateHz, LabelledTime.read(home.labels))
        return if (recordings.none { it.labels.size >= spec.length }) null else windowsOf(recordings, spec.length, spec.stride, spec.steps)
    }
}
