package io.shoal.android

import io.shoal.core.DType
import io.shoal.core.Tensor

/** What one sensor measured: times in ns, rising, and three values each. Grows; written by one thread. */
internal class SensorTrack {
    private var times = LongArray(1024)
    private var values = FloatArray(3 * 1024)

    var size = 0
        private set

    /** Adds a sample; one that is not later than the last is dropped, as sensors that were batched sometimes repeat. */
    fun add(timeNs: Long, x: Float, y: Float, z: Float) {
        if (size > 0 && timeNs <= times[size - 1]) return
        if (size == times.size) {
            times = times.copyOf(2 * size)
            values = values.copyOf(6 * size)
        }
        times[size] = timeNs
        values[3 * size] = x
        values[3 * size + 1] = y
        values[3 * size + 2] = z
        size++
    }

    fun timeNs(at: Int): Long = times[at]

    /** Value [axis] at [timeNs], on the line between sample [before] and the next, float64 rounded once. */
    fun at(before: Int, timeNs: Long, axis: Int): Float {
        val from = values[3 * before + axis].toDouble()
        if (before + 1 >= size) return from.toFloat()
        val share = (timeNs - times[before]).toDouble() / (times[before + 1] - times[before])
        return (from + share * (values[3 * (before + 1) + axis] - from)).toFloat()
    }
}

/**
 * Brings the tracks of several sensors onto one grid of [rateHz] by linear interpolation: (n, 3 x tracks) float32, the tracks' axes side by
 * side, for each stretch in which all sensors measured. Where one is silent for longer than [maxGapNs] a stretch ends: nothing is made up.
 */
internal fun resample(tracks: List<SensorTrack>, rateHz: Double, maxGapNs: Long = MAX_GAP_NS): List<Tensor> {
    require(rateHz > 0) { "a rate of $rateHz Hz" }
    if (tracks.any { it.size < 2 }) return emptyList()
    return stretches(tracks, maxGapNs).mapNotNull { (fromNs, untilNs) -> onGrid(tracks, fromNs, untilNs, rateHz) }
}

private const val MAX_GAP_NS = 500_000_000L

/** The times between which every track has samples closer than the gap. */
private fun stretches(tracks: List<SensorTrack>, maxGapNs: Long): List<Pair<Long, Long>> {
    val gaps = tracks.flatMap { track ->
        (1 until track.size).map { Pair(track.timeNs(it - 1), track.timeNs(it)) }.filter { (a, b) -> b - a > maxGapNs }
    }.sortedBy { it.first }
    var fromNs = tracks.maxOf { it.timeNs(0) }
    val end = tracks.minOf { it.timeNs(it.size - 1) }
    val found = ArrayList<Pair<Long, Long>>()
    for ((a, b) in gaps) {
        if (a > fromNs) found += Pair(fromNs, minOf(a, end))
        fromNs = maxOf(fromNs, b)
    }
    found += Pair(fromNs, end)
    return found.filter { (a, b) -> b > a }
}

private fun onGrid(tracks: List<SensorTrack>, fromNs: Long, untilNs: Long, rateHz: Double): Tensor? {
    val count = ((untilNs - fromNs) * rateHz / 1e9).toInt() + 1
    if (count < 2) return null
    val grid = Tensor.allocate(DType.FLOAT32, listOf(count, 3 * tracks.size))
    val numbers = grid.floats()
    val before = IntArray(tracks.size)
    for (i in 0 until count) {
        val timeNs = fromNs + Math.round(i * 1e9 / rateHz)
        for ((at, track) in tracks.withIndex()) {
            while (before[at] + 1 < track.size && track.timeNs(before[at] + 1) <= timeNs) before[at]++
            for (axis in 0 until 3) numbers.put(track.at(before[at], timeNs, axis))
        }
    }
    return grid
}
