package io.shoal.android

/**
 * Sensor of a [SensorGrid]: how many numbers a measurement has, and for how long it is valid; 0
 * means interpolation.
 */
internal class GridTrack(val axes: Int, val holdNs: Long = 0)

/** Receiver of the rows of a [SensorGrid], on the thread that feeds it. */
internal interface GridSink {
    /** Receive the values of all sensors side by side at [timeNs]. The array is used again. */
    fun row(timeNs: Long, values: FloatArray)

    /** Begin another stretch with the next row, since a sensor was silent. */
    fun cut()
}

/**
 * Resampling of several sensors to one grid of [rateHz] while they measure: by linear
 * interpolation, in float64, rounded once; or, for a sensor that reports changes alone, by its last
 * value. If a sensor is silent for longer than [maxGapNs], a stretch ends: no values are invented.
 * The number of samples that wait for a late sensor is bounded. Used by one thread.
 */
internal class SensorGrid(tracks: List<GridTrack>, private val rateHz: Double, private val sink: GridSink, private val maxGapNs: Long = MAX_GAP_NS) {
    private val lines = tracks.map { Line(it) }
    private val row = FloatArray(tracks.sumOf { it.axes })
    private var fromNs = NONE
    private var count = 0L
    private var newestNs = NONE

    init {
        require(rateHz > 0 && tracks.isNotEmpty()) { "expected at least one sensor, and rateHz above 0; got ${tracks.size} sensors and $rateHz" }
    }

    /**
     * Add the [values] of sensor [track] at [timeNs]. A sample that is not later than the sensor's
     * last is dropped: batched sensors sometimes repeat samples.
     */
    fun add(track: Int, timeNs: Long, values: FloatArray) {
        if (!lines[track].add(timeNs, values)) return
        if (newestNs == NONE || timeNs > newestNs) newestNs = timeNs
        while (emit()) continue
        val oldestNs = lines.filter { !it.isEmpty && it.holdNs == 0L }.minOfOrNull { it.timeNs(0) } ?: return
        if (newestNs - oldestNs > LATE_NS) cut(newestNs - maxGapNs) // a sensor has stopped
    }

    /** Emit a row, or a cut, if all sensors are known for it. Return true if there was one. */
    private fun emit(): Boolean {
        if (fromNs == NONE) {
            if (lines.any { it.isEmpty }) return false
            fromNs = lines.maxOf { it.timeNs(0) }
            count = 0
        }
        val timeNs = fromNs + Math.round(count * 1e9 / rateHz)
        var at = 0
        for (line in lines) {
            line.dropBefore(timeNs)
            if (line.isEmpty) return false
            when {
                line.holdNs > 0 -> if (timeNs - line.timeNs(0) > line.holdNs) return line.size > 1 && cut(line.timeNs(1))
                line.timeNs(0) < timeNs && line.size < 2 -> return false
                line.size > 1 && line.timeNs(0) < timeNs && line.timeNs(1) - line.timeNs(0) > maxGapNs -> return cut(line.timeNs(1))
            }
            for (axis in 0 until line.axes) row[at++] = line.at(timeNs, axis)
        }
        sink.row(timeNs, row)
        count++
        return true
    }

    private fun cut(untilNs: Long): Boolean {
        if (fromNs != NONE && count > 0) sink.cut()
        fromNs = NONE
        lines.forEach { it.dropOlder(untilNs) }
        return true
    }

    /** Samples of one sensor that are still needed: a ring that grows. */
    private class Line(track: GridTrack) {
        val axes = track.axes
        val holdNs = track.holdNs
        private var times = LongArray(64)
        private var values = FloatArray(64 * axes)
        private var first = 0
        private var lastNs = NONE

        var size = 0
            private set

        val isEmpty: Boolean get() = size == 0

        fun add(timeNs: Long, measured: FloatArray): Boolean {
            if (lastNs != NONE && timeNs <= lastNs) return false
            lastNs = timeNs
            if (first + size == times.size) makeRoom()
            times[first + size] = timeNs
            System.arraycopy(measured, 0, values, (first + size) * axes, axes)
            size++
            return true
        }

        fun timeNs(at: Int): Long = times[first + at]

        /**
         * Return the value [axis] at [timeNs], which is between the first two samples, or at the
         * first.
         */
        fun at(timeNs: Long, axis: Int): Float {
            val from = values[first * axes + axis].toDouble()
            if (holdNs > 0 || size < 2 || timeNs == times[first]) return from.toFloat()
            val share = (timeNs - times[first]).toDouble() / (times[first + 1] - times[first])
            return (from + share * (values[(first + 1) * axes + axis] - from)).toFloat()
        }

        /** Drop old samples, except the last one at or before [timeNs]. */
        fun dropBefore(timeNs: Long) {
            while (size > 1 && times[first + 1] <= timeNs) drop()
        }

        /**
         * Drop samples that are older than [untilNs], except the last one of a sensor that reports
         * changes alone.
         */
        fun dropOlder(untilNs: Long) {
            while (size > (if (holdNs > 0) 1 else 0) && times[first] < untilNs) drop()
        }

        private fun drop() {
            first++
            size--
        }

        private fun makeRoom() {
            if (first > times.size / 2) {
                times.copyInto(times, 0, first, first + size)
                values.copyInto(values, 0, first * axes, (first + size) * axes)
                first = 0
            } else {
                times = times.copyOf(2 * times.size)
                values = values.copyOf(2 * values.size)
            }
        }
    }

    private companion object {
        const val NONE = Long.MIN_VALUE
        const val MAX_GAP_NS = 500_000_000L

        /**
         * Maximum delay of one sensor's samples after another's, with samples that Android delivers
         * in batches.
         */
        const val LATE_NS = 90_000_000_000L
    }
}
