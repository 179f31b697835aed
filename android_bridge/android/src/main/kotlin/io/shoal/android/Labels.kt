package io.shoal.android

import io.shoal.core.Log
import io.shoal.core.NO_LABEL
import io.shoal.core.writeAtomically
import java.io.File
import java.io.FileOutputStream
import java.io.IOException
import java.util.concurrent.CompletableFuture
import java.util.concurrent.Executor

/** Source of a label. A later one in this list overrides an earlier one. */
public enum class LabelSource {
    /** A guess, for example by Activity Recognition. */
    HINT,

    /** The phone's owner, who was asked afterwards. */
    PROMPT,

    /** The app, which knows. It overrides the label with which the recording began. */
    APP,
}

/**
 * Labels of times, for a fleet's recordings, existing or future ones. If two overlap, the better
 * source counts, and of one source the later label. A window whose samples have several labels, or
 * none, has no label. Labels outlive the process; those of times before all recordings are deleted
 * with the oldest recordings ([RecordingOptions]). Functions may be called on any thread; do not wait
 * for their results on the main thread.
 */
public class Labels internal constructor(
    private val home: Home,
    private val disk: Executor,
    private val wanted: () -> Boolean,
    private val log: Log,
) {
    /**
     * Add [label] for the time from [fromMs] to before [untilMs] (Unix time in ms). Returns at once;
     * a thread of the library writes the file and completes the result: true if the label is on
     * disk and outlives the process, false if there is no consent or no room for it.
     *
     * @throws IllegalArgumentException the label is empty or has a comma or a line break, or the
     *   time does not end after it begins
     */
    @JvmOverloads
    public fun add(label: String, fromMs: Long, untilMs: Long, source: LabelSource = LabelSource.APP): CompletableFuture<Boolean> {
        require(label.isNotEmpty() && '\n' !in label && ',' !in label) { "label must be a name without comma or line break, got '$label'" }
        return store(LabelledTime(fromMs, untilMs, source, label))
    }

    /**
     * Return the labels that were added and not removed since, in that order, without those of
     * recordings. A thread of the library reads the file; the result fails with an [IOException] if
     * it cannot.
     */
    public fun list(): CompletableFuture<List<LabelledTime>> =
        CompletableFuture.supplyAsync({ LabelledTime.read(home.labels).filter { it.label.isNotEmpty() } }, disk)

    /**
     * Remove all labels of this time from disk, of every source, and ignore those of recordings
     * from then on. Returns at once, as [add] does, with such a result, with consent or without.
     *
     * @throws IllegalArgumentException the time does not end after it begins
     */
    public fun remove(fromMs: Long, untilMs: Long): CompletableFuture<Boolean> = store(LabelledTime(fromMs, untilMs, LabelSource.APP, ""))

    private fun store(time: LabelledTime): CompletableFuture<Boolean> {
        require(time.fromMs < time.untilMs) { "fromMs must be below untilMs, got ${time.fromMs} and ${time.untilMs}" }
        val isRemoval = time.label.isEmpty()
        if (!isRemoval && !wanted()) return CompletableFuture.completedFuture(false)
        return disk.outcome {
            if (!isRemoval && !wanted()) return@outcome false
            try {
                home.folder.mkdirs()
                if (isRemoval) write(LabelledTime.read(home.labels).flatMap { it.without(time) })
                FileOutputStream(home.labels, true).use { // the first line break ends a line that a kill cut short
                    it.write("\n$time\n".toByteArray())
                    it.fd.sync()
                }
                true
            } catch (error: IOException) {
                log.write(Log.Level.ERROR, "a label cannot be stored: $error")
                false
            }
        }
    }

    /** Remove the labels of times that ended at [beforeMs] or earlier: no recording has samples of them. */
    internal fun forget(beforeMs: Long): Unit = disk.execute {
        try {
            val (old, others) = LabelledTime.read(home.labels).partition { it.untilMs <= beforeMs }
            if (old.isNotEmpty()) write(others)
        } catch (error: IOException) {
            log.write(Log.Level.ERROR, "old labels cannot be removed: $error")
        }
    }

    private fun write(times: List<LabelledTime>) = writeAtomically(home.labels, times.joinToString("") { "$it\n" }.toByteArray())

    /**
     * Question what somebody did from [fromMs] to before [untilMs] (Unix time in ms), when the
     * windows look alike. One answer, by [Labels.add], labels all of them.
     *
     * @property answers the model's classes, the likeliest first
     */
    public class LabelQuestion internal constructor(public val fromMs: Long, public val untilMs: Long, public val answers: List<String>) {
        /** Duration in whole minutes, at least 1. */
        public val minutes: Int get() = ((untilMs - fromMs + 30_000) / 60_000).toInt().coerceAtLeast(1)

        override fun equals(other: Any?): Boolean = other is LabelQuestion && toString() == other.toString()

        override fun hashCode(): Int = toString().hashCode()

        override fun toString(): String = "from $fromMs to $untilMs: $answers"
    }

    /** Label of the time from [fromMs] to before [untilMs] (Unix time in ms). */
    public class LabelledTime internal constructor(
        public val fromMs: Long,
        public val untilMs: Long,
        /** Source of the label. */
        public val source: LabelSource,
        /** Name of the label; empty where labels were removed. */
        public val label: String,
    ) {
        override fun equals(other: Any?): Boolean = other is LabelledTime && toString() == other.toString()

        override fun hashCode(): Int = toString().hashCode()

        override fun toString(): String = "$fromMs,$untilMs,${source.name},$label,"

        /** Return the parts of it outside another time. */
        internal fun without(other: LabelledTime): List<LabelledTime> = listOf(
            LabelledTime(fromMs, minOf(untilMs, other.fromMs), source, label),
            LabelledTime(maxOf(fromMs, other.untilMs), untilMs, source, label),
        ).filter { it.fromMs < it.untilMs }

        internal companion object {
            /** Return the times in a file, in their order. */
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
}

/**
 * Return the labels of samples that begin at [startMs], [rateHz] per second. [recorded] are the
 * labels of the recording itself.
 */
internal fun labelled(recorded: LongArray, startMs: Long, rateHz: Double, times: List<Labels.LabelledTime>, classes: List<String>): LongArray {
    val labels = LongArray(recorded.size) { NO_LABEL }
    fun paint(source: LabelSource) {
        for (time in times) {
            val number = if (time.label.isEmpty()) NO_LABEL else classes.indexOf(time.label).toLong()
            if (time.source != source || (number < 0 && time.label.isNotEmpty())) continue // the model does not know this class
            val first = Math.ceil((time.fromMs - startMs) * rateHz / 1000).toLong().coerceIn(0, recorded.size.toLong()).toInt()
            val end = Math.ceil((time.untilMs - startMs) * rateHz / 1000).toLong().coerceIn(0, recorded.size.toLong()).toInt()
            labels.fill(number, first, maxOf(first, end))
        }
    }
    paint(LabelSource.HINT)
    paint(LabelSource.PROMPT)
    for (i in recorded.indices) if (recorded[i] != NO_LABEL) labels[i] = recorded[i]
    paint(LabelSource.APP)
    return labels
}
