package io.shoal.android

import io.shoal.core.Log
import io.shoal.core.Tensor

/**
 * Windows of the measurements as they come: every stride, the last samples. What the listener throws
 * is logged: its thread is that of the recording. Used by one thread.
 */
internal class LiveWindows(private val spec: WindowSpec, private val log: Log = LogcatLog, private val listener: WindowListener) : GridSink {
    private val numChannels = spec.channels.size
    private val samples = FloatArray(numChannels * spec.length)
    private val stepNs = (1e9 / spec.rateHz).toLong()
    private var count = 0L

    override fun row(timeNs: Long, values: FloatArray) {
        values.copyInto(samples, (count % spec.length).toInt() * numChannels, 0, numChannels)
        count++
        if (count < spec.length || (count - spec.length) % spec.stride != 0L) return
        log.failures(listener) { listener.onWindow(window(), timeNs - (spec.length - 1) * stepNs) }
    }

    /** Return the window, channels first, the oldest sample first. */
    private fun window(): Tensor {
        val window = FloatArray(samples.size) { i ->
            val sample = ((count + i % spec.length) % spec.length).toInt()
            samples[sample * numChannels + i / spec.length]
        }
        return Tensor.of(window, listOf(1, numChannels, spec.length))
    }

    override fun cut() {
        count = 0
    }
}

/** Two sinks, of which the first may be missing. */
internal class TwoSinks(private val first: GridSink?, private val second: GridSink) : GridSink {
    override fun row(timeNs: Long, values: FloatArray) {
        first?.row(timeNs, values)
        second.row(timeNs, values)
    }

    override fun cut() {
        first?.cut()
        second.cut()
    }
}
