package io.shoal.android

import android.content.Context
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
 * @param sensors what [SensorRecorder] records, each with three channels in this order
 */
public class WindowSpec @JvmOverloads constructor(
    public val classes: List<String>,
    public val length: Int = 128,
    public val stride: Int = 64,
    public val rateHz: Double = 50.0,
    public val sensors: List<RecordedSensor> = listOf(RecordedSensor.ACCELEROMETER, RecordedSensor.GYROSCOPE),
) {
    init {
        require(classes.isNotEmpty() && classes.none { ',' in it || '\n' in it }) { "classes $classes: names without comma or line break" }
        require(length > 0 && stride > 0 && rateHz > 0 && sensors.isNotEmpty()) { "windows of $length samples every $stride at $rateHz Hz" }
    }

    internal val channels: List<String> get() = sensors.flatMap { sensor -> listOf("x", "y", "z").map { "${sensor.channel}_$it" } }
}

/** A sensor with three axes. [type] is Android's number of it. */
public enum class RecordedSensor(internal val type: Int, internal val channel: String) {
    /** Acceleration with gravity, m/s2. */
    ACCELEROMETER(android.hardware.Sensor.TYPE_ACCELEROMETER, "accelerometer"),

    /** Rate of rotation, rad/s. */
    GYROSCOPE(android.hardware.Sensor.TYPE_GYROSCOPE, "gyroscope"),
}

/** Windows cut from what [SensorRecorder] recorded. An app extends it with its own [spec], and enrols with that class. */
public abstract class RecordedWindows(public val spec: WindowSpec) : WindowSource {
    override fun load(context: Context, fleet: String): Windows? {
        val recordings = RecordingFolder(Home.of(File(context.noBackupFilesDir, "shoal"), fleet).recordings).read(spec.channels, spec.classes)
        return if (recordings.none { it.labels.size >= spec.length }) null else windowsOf(recordings, spec.length, spec.stride)
    }
}
