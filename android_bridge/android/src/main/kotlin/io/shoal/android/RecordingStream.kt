package io.shoal.android

import io.shoal.core.Log
import java.io.IOException

/**
 * Recording in files. A new file begins after a gap, with another label, and after ten minutes.
 * Files shorter than a window are deleted. A full disk ends the recording, and so do twelve hours
 * without a word from the app; the files so far stay. Used by one thread.
 *
 * @param epochNs difference between Unix time and a sensor's time (ns)
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
    private var untilNs = NONE

    /** True if it has ended by itself. */
    @Volatile
    var isOver = false
        private set
    private var rows = 0L

    override fun row(timeNs: Long, values: FloatArray) {
        if (isOver) return
        if (untilNs == NONE) untilNs = timeNs + FORGOTTEN_NS
        if (timeNs >= untilNs) {
            cut()
            isOver = true
            return
        }
        guarded {
            if (!wanted()) return@guarded drop()
            val open = writer ?: folder.begin(spec.channels, label, (timeNs + epochNs) / 1_000_000).also { writer = it }
            open.add(values)
            if (open.rows == mostRows) cut()
        }
    }

    override fun cut(): Unit = guarded {
        val finished = writer ?: return@guarded
        writer = null
        if (wanted()) finished.end(spec.length) else finished.discard()
        if (wanted() && finished.rows >= spec.length) rows += finished.rows
    }

    /** Change the label of the samples from now on. */
    fun relabel(label: String) {
        untilNs = NONE
        if (label == this.label) return
        cut()
        this.label = label
    }

    /** End the recording, and return the number of seconds that were stored. */
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
            isOver = true
            writer = null
            log.write(Log.Level.ERROR, "the recording ends: $error")
        }
    }

    private companion object {
        const val PART_S = 600.0
        const val NONE = Long.MIN_VALUE
        const val FORGOTTEN_NS = 12L * 60 * 60 * 1_000_000_000
    }
}
