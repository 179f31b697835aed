package io.shoal.android

import io.shoal.android.Labels.LabelledTime
import io.shoal.android.StoredRecordings.RecordingInfo
import io.shoal.core.DataException
import io.shoal.core.Recording
import io.shoal.core.readRecording
import java.io.File
import java.io.FileOutputStream
import java.io.IOException
import java.io.RandomAccessFile
import java.util.Locale
import java.util.concurrent.ConcurrentHashMap

/**
 * Recordings as CSV files, in the format of `shoal-edge --data FOLDER`: a header with `label` and
 * the channels, then one sample per row. The name has the time of the first sample. A file that is
 * being written ends with `.part`. After a kill, its complete rows count.
 *
 * @param path function that returns the folder's path, as in [Home]
 */
internal class RecordingFolder(path: () -> File) {
    constructor(folder: File) : this({ folder })

    private val folder by lazy(path)

    /**
     * Begin a recording whose first sample is of [startMs] (Unix time). An empty [label] means no
     * label.
     */
    fun begin(channels: List<String>, label: String, startMs: Long): Writer {
        folder.mkdirs()
        if (!folder.isDirectory) throw IOException("$folder: cannot be created")
        val number = 1 + (folder.list().orEmpty().mapNotNull { NAME.matchEntire(it)?.groupValues?.get(1)?.toIntOrNull() }.maxOrNull() ?: 0)
        return Writer(File(folder, String.format(Locale.ROOT, "recording-%06d-%d.csv.part", number, startMs)), channels, label)
    }

    /** Recording that grows on disk. Used by one thread. */
    class Writer internal constructor(private val file: File, private val channels: List<String>, private val label: String) {
        private val stream: FileOutputStream
        private val text = StringBuilder()
        private var unflushed = 0

        /** Number of its rows. */
        var rows = 0
            private set

        init {
            WRITTEN += file.path
            stream = try {
                FileOutputStream(file)
            } catch (error: IOException) {
                WRITTEN -= file.path
                throw error
            }
            text.append("label").also { channels.forEach { text.append(',').append(it) } }.append('\n')
        }

        fun add(values: FloatArray) {
            require(values.size == channels.size) { "expected ${channels.size} numbers, one for each of $channels, got ${values.size}" }
            text.append(label)
            for (value in values) text.append(',').append(value)
            text.append('\n')
            rows++
            if (++unflushed == ROWS_A_WRITE) flush()
        }

        private fun flush() {
            stream.write(text.toString().toByteArray())
            text.setLength(0)
            unflushed = 0
        }

        /** End it, and keep the file if it has [least] rows. */
        fun end(least: Int) {
            try {
                if (rows >= least) flush()
                stream.fd.sync()
            } finally {
                stream.close()
                settle(file, rows >= least)
                WRITTEN -= file.path
            }
        }

        /** End it, and delete the file. */
        fun discard() {
            stream.close()
            file.delete()
            WRITTEN -= file.path
        }
    }

    /**
     * Finish recordings that a kill ended, without a partial last row. Those that are being written
     * stay as they are.
     */
    fun recover() {
        for (file in folder.listFiles { file -> file.name.endsWith(PART) }.orEmpty()) {
            if (file.path in WRITTEN) continue
            val whole = file.readBytes().indexOfLast { it == '\n'.code.toByte() } + 1L
            RandomAccessFile(file, "rw").use { it.setLength(whole) }
            settle(file, whole > 0)
        }
    }

    /** Return the size of the recordings (bytes). */
    fun numBytes(): Long = files().sumOf { it.length() }

    /**
     * Delete recordings that began before [sinceMs], and then the oldest ones until at most
     * [maxBytes] are left.
     */
    fun trim(maxBytes: Long, sinceMs: Long = Long.MIN_VALUE) {
        for (file in files()) if (startMs(file) < sinceMs) file.delete()
        var total = numBytes()
        for (file in files()) {
            if (total <= maxBytes) return
            total -= file.length()
            file.delete()
        }
    }

    /** Return the time at which the oldest recording began (Unix time in ms), or null if there is none. */
    fun oldestMs(): Long? = all().minOfOrNull(::startMs)

    /** Return the stored recordings, in the order of their start. */
    fun list(): List<RecordingInfo> {
        recover()
        return files().map { file ->
            var (lines, label) = Pair(0, "")
            file.forEachLine { line -> if (lines++ == 1) label = line.substringBefore(',') }
            RecordingInfo(startMs(file), label, maxOf(lines - 1, 0), file.length())
        }
    }

    /**
     * Delete recordings that began from [fromMs] to before [untilMs], and return true if they are
     * gone. What follows of one that is being written is lost until its next file.
     */
    fun delete(fromMs: Long, untilMs: Long): Boolean =
        all().filter { startMs(it) in fromMs until untilMs }.onEach { it.delete() }.none { it.exists() }

    /**
     * Return all recordings, in the order of their start. [times] are labels of times; there are
     * [rateHz] samples per second.
     *
     * @throws DataException a file has other channels, or a label that is not in [classes]; a
     *   sample may have none
     */
    fun read(channels: List<String>, classes: List<String>, rateHz: Double = 1.0, times: List<LabelledTime> = emptyList()): List<Recording> =
        files().mapNotNull { file ->
            val read = try {
                read(file, channels, classes)
            } catch (error: DataException) {
                if (file.exists()) throw error else return@mapNotNull null // it was deleted meanwhile
            }
            val start = startMs(file)
            Recording(read.samples, labelled(read.labels, start, rateHz, times, classes), start / 1000.0, rateHz)
        }

    private fun all(): List<File> = folder.listFiles { file -> NAME.matches(file.name) }.orEmpty().sortedBy { it.name }

    private fun files(): List<File> = all().filterNot { it.name.endsWith(PART) }

    /** Return the Unix time of the first sample (ms). */
    private fun startMs(file: File): Long = NAME.matchEntire(file.name)!!.groupValues[2].toLong()

    private fun read(file: File, channels: List<String>, classes: List<String>): Recording {
        val (fileChannels, recording) = readRecording(file, classes)
        if (fileChannels != channels) throw DataException("$file: expected channels $channels, got $fileChannels")
        return recording
    }

    private companion object {
        const val PART = ".csv.part"
        const val ROWS_A_WRITE = 250
        val NAME = Regex("recording-(\\d{1,9})-(\\d{1,18})\\.csv(?:\\.part)?")

        /** Files that this process is writing. */
        val WRITTEN: MutableSet<String> = ConcurrentHashMap.newKeySet()

        /**
         * Remove the last suffix of a file's name if it is to be kept, or delete the file. A file
         * that was erased meanwhile is skipped.
         */
        fun settle(file: File, keep: Boolean) {
            val target = File(file.path.removeSuffix(".part"))
            if (keep && file.exists() && !file.renameTo(target)) throw IOException("$target: cannot be written")
            if (!keep) file.delete()
        }
    }
}
