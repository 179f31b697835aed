package io.shoal.android

import io.shoal.core.Log
import java.io.IOException

/**
 * A recording as files: another one after a gap, with another label, and after ten minutes. Those shorter than a window are not kept. A full
 * disk ends it with what is there. Used by one thread.
 *
 * @param epochNs what is added to a sensor's time, ns, for Unix time
 */
internal class RecordingStream(
    private val folder: RecordingFolder,
    private val spec: WindowSpec,
    private var label: String,
    private val epochNs: Long,
    private val log: Log = LogcatLog,
    private val wanted: () -> Boolean,
) : GridSink {
    private val mostRows = (PART_S * spec.rateHz).toInt().coerceAtLeast(spec.length)
    private var writer: RecordingFolder.Writer? = null
    private var failed = false
    private var rows = 0L

    override fun row(timeNs: Long, values: FloatArray) {
        if (failed) return
        guarded {
            if (!wanted()) return@guarded drop()
            val open = writer ?: folder.begin(spec.channels, label, (timeNs + epochNs) / 1_000_000).also { writer = it }
            open.add(values)
            if (open.rows == mostRows) cut()
        }
    }

    override fun cut(): Unit = guarded {
        val done = writer ?: return@guarded
        writer = null
        if (wanted()) done.end(spec.length) else done.discard()
        if (wanted() && done.rows >= spec.length) rows += done.rows
    }

    /** What comes from now on is of another class. */
    fun relabel(label: String) {
        if (label == this.label) return
        cut()
        this.label = label
    }

    /** No more comes; how many seconds were kept. */
    fun end(keep: Boolean): Double {
        if (keep) cut() else drop()
        return rows / spec.rateHz
    }

    private fun drop() {
        writer?.discard()
        writer = null
    }

    private fun guarded(act: () -> Unit) {
        try {
            act()
        } catch (error: IOException) {
            failed = true
            writer = null
            log.write(Log.Level.ERROR, "the recording ends: $error")
        }
    }

    private companion object {
        const val PART_S = 600.0
    }
}
