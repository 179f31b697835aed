package io.shoal.android

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
 * Recordings as CSV files, as `shoal-edge --data FOLDER` reads them too: a header with `label` and the channels, then a sample a row. The
 * name says when the first sample was measured. One that is being made ends in `.part`; of one that a kill ended, all whole rows count.
 */
internal class RecordingFolder(private val folder: File) {
    /** Begins a recording whose first sample is of [startMs] (Unix time); with an empty [label] nobody has said of which class it is. */
    fun begin(channels: List<String>, label: String, startMs: Long): Writer {
        folder.mkdirs()
        if (!folder.isDirectory) throw IOException("$folder: cannot be made")
        val number = 1 + (folder.list().orEmpty().mapNotNull { NAME.matchEntire(it)?.groupValues?.get(1)?.toIntOrNull() }.maxOrNull() ?: 0)
        return Writer(File(folder, String.format(Locale.ROOT, "recording-%06d-%d.csv.part", number, startMs)), channels, label)
    }

    /** One recording that grows on disk. Used by one thread. */
    class Writer internal constructor(private val file: File, private val channels: List<String>, private val label: String) {
        private val stream: FileOutputStream
        private val text = StringBuilder()
        private var unflushed = 0

        /** How many rows it has. */
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
            require(values.size == channels.size) { "${values.size} numbers for the channels $channels" }
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

        /** Ends it; kept if it has [least] rows. */
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

        /** Ends it, and keeps nothing. */
        fun discard() {
            stream.close()
            file.delete()
            WRITTEN -= file.path
        }
    }

    /** Keeps what recordings hold that a kill ended, but for a row that it cut short. Those that are being made stay as they are. */
    fun recover() {
        for (file in folder.listFiles { file -> file.name.endsWith(PART) }.orEmpty()) {
            if (file.path in WRITTEN) continue
            val whole = file.readBytes().indexOfLast { it == '\n'.code.toByte() } + 1L
            RandomAccessFile(file, "rw").use { it.setLength(whole) }
            settle(file, whole > 0)
        }
    }

    /** How many bytes the recordings take. */
    fun numBytes(): Long = files().sumOf { it.length() }

    /** Deletes what was recorded before [sinceMs], and then the oldest recordings until at most [maxBytes] are left. */
    fun trim(maxBytes: Long, sinceMs: Long = Long.MIN_VALUE) {
        for (file in files()) if ((startMs(file) ?: file.lastModified()) < sinceMs) file.delete()
        var total = numBytes()
        for (file in files()) {
            if (total <= maxBytes) return
            total -= file.length()
            file.delete()
        }
    }

    /**
     * All recordings, in the order they were made; [times] says of which class samples are, [rateHz] of them a second.
     *
     * @throws DataException a file is of other channels, or has a label that [classes] does not name; a sample may have none
     */
    fun read(channels: List<String>, classes: List<String>, rateHz: Double = 1.0, times: List<LabelledTime> = emptyList()): List<Recording> =
        files().map { file ->
            val read = read(file, channels, classes)
            val start = startMs(file) ?: return@map read
            Recording(read.samples, labelled(read.labels, start, rateHz, times, classes))
        }

    private fun files(): List<File> = folder.listFiles { file -> file.name.endsWith(".csv") }.orEmpty().sortedBy { it.name }

    /** Null of recordings whose names say no time, as earlier versions named them. */
    private fun startMs(file: File): Long? = NAME.matchEntire(file.name)?.groupValues?.get(2)?.toLongOrNull()

    private fun read(file: File, channels: List<String>, classes: List<String>): Recording {
        val (own, recording) = readRecording(file, classes)
        if (own != channels) throw DataException("$file: channels $own, expected $channels")
        return recording
    }

    private companion object {
        const val PART = ".csv.part"
        const val ROWS_A_WRITE = 250
        val NAME = Regex("recording-(\\d{1,9})(?:-(\\d{1,18}))?\\.csv(?:\\.part)?")

        /** The files that this process is writing. */
        val WRITTEN: MutableSet<String> = ConcurrentHashMap.newKeySet()

        /** A file without its last suffix if it is to be kept, else it is deleted; one that was erased meanwhile is gone. */
        fun settle(file: File, keep: Boolean) {
            val target = File(file.path.removeSuffix(".part"))
            if (keep && file.exists() && !file.renameTo(target)) throw IOException("$target: cannot be written")
            if (!keep) file.delete()
        }
    }
}
