package io.shoal.android

/** One sensor of a [SensorGrid]: how many numbers a measurement has, and for how long one holds; 0: values between two are on the line. */
internal class GridTrack(val axes: Int, val holdNs: Long = 0)

/** Is given what a [SensorGrid] makes, by the thread that feeds it. */
internal interface GridSink {
    /** The values of all sensors side by side at [timeNs]; the array is used again. */
    fun row(timeNs: Long, values: FloatArray)

    /** A sensor was silent: the next row begins another stretch. */
    fun cut()
}

/**
 * Brings several sensors onto one grid of [rateHz] while they measure: by linear interpolation, float64 rounded once, or, of a sensor that
 * only speaks when something changes, by what it said last. Where a sensor is silent for longer than [maxGapNs] a stretch ends: nothing is
 * made up. What waits for a sensor that is late is bounded. Used by one thread.
 */
internal class SensorGrid(tracks: List<GridTrack>, private val rateHz: Double, private val sink: GridSink, private val maxGapNs: Long = MAX_GAP_NS) {
    private val lines = tracks.map { Line(it) }
    private val row = FloatArray(tracks.sumOf { it.axes })
    private var fromNs = NONE
    private var count = 0L
    private var newestNs = NONE

    init {
        require(rateHz > 0 && tracks.isNotEmpty()) { "${tracks.size} sensors at $rateHz Hz" }
    }

    /** Sensor [track] measured [values] at [timeNs]. One that is not later than its last is dropped, as sensors that were batched sometimes repeat. */
    fun add(track: Int, timeNs: Long, values: FloatArray) {
        if (!lines[track].add(timeNs, values)) return
        if (newestNs == NONE || timeNs > newestNs) newestNs = timeNs
        while (emit()) continue
        val oldestNs = lines.filter { !it.isEmpty && it.holdNs == 0L }.minOfOrNull { it.timeNs(0) } ?: return
        if (newestNs - oldestNs > LATE_NS) cut(newestNs - maxGapNs) // a sensor has gone away
    }

    /** Whether there is a row, or a cut, that all sensors are known for. */
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

    /** What one sensor measured and is still needed: a ring that grows. */
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

        /** Value [axis] at [timeNs], which is between the first two samples, or at the first. */
        fun at(timeNs: Long, axis: Int): Float {
            val from = values[first * axes + axis].toDouble()
            if (holdNs > 0 || size < 2 || timeNs == times[first]) return from.toFloat()
            val share = (timeNs - times[first]).toDouble() / (times[first + 1] - times[first])
            return (from + share * (values[(first + 1) * axes + axis] - from)).toFloat()
        }

        /** Forgets samples after which another one is not later than [timeNs]. */
        fun dropBefore(timeNs: Long) {
            while (size > 1 && times[first + 1] <= timeNs) drop()
        }

        /** Forgets samples that are older than [untilNs]; of a sensor whose samples hold, not the last. */
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

        /** So long may one sensor's samples come after another's, with those that Android brings in batches. */
        const val LATE_NS = 90_000_000_000L
    }
}
