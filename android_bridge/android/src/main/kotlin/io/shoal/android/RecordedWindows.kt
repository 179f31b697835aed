package io.shoal.android

import android.content.Context
import android.hardware.Sensor
import io.shoal.android.Labels.LabelledTime
import io.shoal.core.DataException
import io.shoal.core.Windows
import io.shoal.core.windowsOf
import java.io.File

/**
 * Windows of the fleet's model. They must be those of the bundle (`shoal export inspect` shows
 * them), or the phone declines its plans. In Java, the last parameters may be left out.
 *
 * @param classes names of the classes, in the bundle's order
 * @param length number of samples in a window
 * @param stride number of samples from one window to the next
 * @param rateHz number of samples per second
 * @param sensors sensors that [SensorRecorder] records, the channels of each in this order
 * @param worldFrame true to turn the axes of sensors into the world's, so that it does not matter
 *   how the phone is carried. This needs a gyroscope, and the names of channels then begin with
 *   `world_`
 * @param steps number of equal steps of a window, each with its class, in a task of sequences; 0 in
 *   other tasks
 * @throws IllegalArgumentException there are no classes or no sensors, a class has a comma or a line
 *   break, a number is not above 0, or [length] is no multiple of [steps]
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
        require(steps == 0 || (steps > 1 && length % steps == 0)) { "steps must be a number from 2 that divides the $length samples of a window, got $steps" }
    }

    /** Names of the channels, as in the header of a recording. */
    public val channels: List<String>
        get() = sensors.flatMap { sensor ->
            if (sensor.axes == 1) return@flatMap listOf(sensor.channel)
            listOf("x", "y", "z").map { "${if (worldFrame) "world_" else ""}${sensor.channel}_$it" }
        }

    override fun equals(other: Any?): Boolean = other is WindowSpec && toString() == other.toString()

    override fun hashCode(): Int = toString().hashCode()

    override fun toString(): String = "windows of $length samples every $stride at $rateHz Hz of $channels in $steps steps: $classes"
}

/**
 * Sensor. [type] is Android's number of it. A measurement has [axes] numbers. If the sensor reports
 * changes alone, a measurement is valid for [holdNs].
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

    /** Light, lux. Android reports changes alone. */
    LIGHT(Sensor.TYPE_LIGHT, "light", 1, 600_000_000_000),

    /**
     * Heart rate, beats per minute; on watches. It needs `BODY_SENSORS`, from API 36 on
     * `android.permission.health.READ_HEART_RATE`.
     */
    HEART_RATE(Sensor.TYPE_HEART_RATE, "heart_rate", 1, 10_000_000_000),
}

/**
 * Windows cut from the recordings of [SensorRecorder]. An app extends it with its own [spec], and
 * names that class in its settings.
 */
public abstract class RecordedWindows(public val spec: WindowSpec) : WindowSource {
    @Throws(DataException::class)
    override fun load(context: Context, fleet: String): Windows? = load(Home.of(File(context.noBackupFilesDir, "shoal"), fleet))

    internal fun load(home: Home): Windows? {
        val folder = RecordingFolder(home.recordings).apply { recover() }
        val recordings = folder.read(spec.channels, spec.classes, spec.rateHz, LabelledTime.read(home.labels))
        return if (recordings.none { it.labels.size >= spec.length }) null else windowsOf(recordings, spec.length, spec.stride, spec.steps)
    }
}
