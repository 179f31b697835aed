package io.shoal.android

import io.shoal.core.DataException
import io.shoal.core.NO_LABEL
import io.shoal.core.Recording
import io.shoal.core.Tensor
import java.io.File
import java.io.IOException

/**
 * Recordings as CSV files, as `shoal-edge --data FOLDER` reads them too: a header with `label` and the channels, then a sample a row. A file
 * appears whole or not at all.
 */
internal class RecordingFolder(private val folder: File) {
    /** Keeps samples (n, channels) of one class; with an empty [label] nobody has said of which. */
    fun add(samples: Tensor, channels: List<String>, label: String) {
        require(samples.shape.getOrNull(1) == channels.size) { "samples $samples for the channels $channels" }
        folder.mkdirs()
        val made = File.createTempFile("recording", ".new", folder)
        made.bufferedWriter().use { out ->
            out.append("label").also { channels.forEach { out.append(',').append(it) } }.append('\n')
            val numbers = samples.floats()
            repeat(samples.rows) {
                out.append(label)
                for (channel in channels) out.append(',').append(numbers.get().toString())
                out.append('\n')
            }
        }
        val number = 1 + (files().lastOrNull()?.name?.filter(Char::isDigit)?.toIntOrNull() ?: 0)
        val file = File(folder, "recording-%06d.csv".format(number))
        if (!made.renameTo(file)) throw IOException("$file: cannot be written")
    }

    /** How many bytes the recordings take. */
    fun numBytes(): Long = files().sumOf { it.length() }

    /** Deletes the oldest recordings until at most [maxBytes] are left. */
    fun trim(maxBytes: Long) {
        var total = numBytes()
        for (file in files()) {
            if (total <= maxBytes) return
            total -= file.length()
            file.delete()
        }
    }

    /**
     * All recordings, in the order they were made.
     *
     * @throws DataException a file is of other channels, or has a label that [classes] does not name; a sample may have none
     */
    fun read(channels: List<String>, classes: List<String>): List<Recording> = files().map { read(it, channels, classes) }

    private fun files(): List<File> = folder.listFiles { file -> file.name.endsWith(".csv") }.orEmpty().sortedBy { it.name }

    private fun read(file: File, channels: List<String>, classes: List<String>): Recording = file.useLines { lines ->
        val rows = lines.iterator()
        val header = if (rows.hasNext()) rows.next() else ""
        if (header != (listOf("label") + channels).joinToString(",")) {
            throw DataException("$file: header '$header', expected label and the channels $channels")
        }
        val numbers = ArrayList<FloatArray>()
        val labels = ArrayList<Long>()
        for (row in rows) {
            val fields = row.split(',')
            val values = fields.drop(1).map { it.toDoubleOrNull()?.toFloat() }
            if (values.size != channels.size || values.any { it == null }) throw DataException("$file: row '$row' does not fit $header")
            if (fields[0].isNotEmpty() && fields[0] !in classes) throw DataException("$file: label '${fields[0]}', expected one of $classes")
            numbers += FloatArray(channels.size) { values[it]!! }
            labels += if (fields[0].isEmpty()) NO_LABEL else classes.indexOf(fields[0]).toLong()
        }
        val samples = FloatArray(numbers.size * channels.size) { numbers[it / channels.size][it % channels.size] }
        Recording(Tensor.of(samples, listOf(numbers.size, channels.size)), labels.toLongArray())
    }
}
