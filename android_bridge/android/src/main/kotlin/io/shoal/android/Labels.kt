package io.shoal.android

import io.shoal.core.Log
import io.shoal.core.NO_LABEL
import java.io.File
import java.io.FileOutputStream
import java.io.IOException
import java.util.concurrent.Executor

/** Who says what was being done; the later in this list, the more it counts. */
public enum class LabelSource {
    /** A guess, as Activity Recognition makes one. */
    HINT,

    /** The phone's owner, who was asked afterwards. */
    PROMPT,

    /** The app, which knows. It counts more than what the recording was begun with. */
    APP,
}

/**
 * What was being done when, of a fleet's recordings, whether these exist already or are made later. Of two that overlap the better source
 * counts, and of one source the later word. A window whose samples have several labels, or none, stays as one without a label.
 */
public class Labels internal constructor(
    private val file: File,
    private val disk: Executor,
    private val wanted: () -> Boolean,
    private val log: Log,
) {
    /**
     * From [fromMs] to before [untilMs] (Unix time in ms) it was [label]. Nothing is kept without consent. Returns at once; written by a
     * thread of the library's.
     *
     * @throws IllegalArgumentException an empty label or one with a line break, or a time that does not end after it begins
     */
    @JvmOverloads
    public fun add(label: String, fromMs: Long, untilMs: Long, source: LabelSource = LabelSource.APP) {
        require(label.isNotEmpty() && '\n' !in label && ',' !in label) { "label '$label': a name without comma or line break" }
        note(LabelledTime(fromMs, untilMs, source, label))
    }

    /** What was said of this time does not count, whoever said it, nor what a recording was begun with. */
    public fun remove(fromMs: Long, untilMs: Long): Unit = note(LabelledTime(fromMs, untilMs, LabelSource.APP, ""))

    private fun note(time: LabelledTime) {
        require(time.fromMs < time.untilMs) { "from ${time.fromMs} until ${time.untilMs}" }
        if (!wanted()) return
        disk.execute {
            if (!wanted()) return@execute
            try {
                file.parentFile.mkdirs()
                FileOutputStream(file, true).use { // a line that a kill cut short is no line
                    it.write("\n$time\n".toByteArray())
                    it.fd.sync()
                }
            } catch (error: IOException) {
                log.write(Log.Level.ERROR, "a label is not kept: $error")
            }
        }
    }
}

/** Such a time; without a [label] nobody says. */
internal class LabelledTime(val fromMs: Long, val untilMs: Long, val source: LabelSource, val label: String) {
    override fun toString(): String = "$fromMs,$untilMs,${source.name},$label,"

    companion object {
        /** Those in a file, in their order. */
        fun read(file: File): List<LabelledTime> = if (file.exists()) file.readLines().mapNotNull(::parse) else emptyList()

        private fun parse(line: String): LabelledTime? {
            val fields = line.split(',')
            if (fields.size != 5 || fields[4].isNotEmpty()) return null
            val source = LabelSource.values().firstOrNull { it.name == fields[2] } ?: return null
            val (from, until) = Pair(fields[0].toLongOrNull() ?: return null, fields[1].toLongOrNull() ?: return null)
            return if (from < until) LabelledTime(from, until, source, fields[3]) else null
        }
    }
}

/** The labels of samples that begin at [startMs], [rateHz] a second; [own] is what the recording itself says of each. */
internal fun labelled(own: LongArray, startMs: Long, rateHz: Double, times: List<LabelledTime>, classes: List<String>): LongArray {
    val labels = LongArray(own.size) { NO_LABEL }
    fun paint(source: LabelSource) {
        for (time in times) {
            val number = if (time.label.isEmpty()) NO_LABEL else classes.indexOf(time.label).toLong()
            if (time.source != source || (number < 0 && time.label.isNotEmpty())) continue // a class that the model does not know
            val first = Math.ceil((time.fromMs - startMs) * rateHz / 1000).toLong().coerceIn(0, own.size.toLong()).toInt()
            val end = Math.ceil((time.untilMs - startMs) * rateHz / 1000).toLong().coerceIn(0, own.size.toLong()).toInt()
            labels.fill(number, first, maxOf(first, end))
        }
    }
    paint(LabelSource.HINT)
    paint(LabelSource.PROMPT)
    for (i in own.indices) if (own[i] != NO_LABEL) labels[i] = own[i]
    paint(LabelSource.APP)
    return labels
}
