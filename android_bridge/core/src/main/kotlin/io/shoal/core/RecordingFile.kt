@file:JvmName("RecordingFiles")

package io.shoal.core

import java.io.BufferedReader
import java.io.File
import java.io.IOException
import java.io.InputStreamReader
import java.io.Reader
import java.math.BigInteger
import java.nio.charset.CharacterCodingException
import java.nio.charset.CodingErrorAction

/** How columns of recordings begin that say a name which is there or not, or a quantity; and the columns that are no channels. */
internal const val NAMED = "label."
internal const val TARGET = "target."
internal const val LABEL = "label"
private const val TIME = "t"
private const val CLASSES = "classes.txt"
private val ENDS = listOf("csv", "parquet")

/**
 * The recordings of a folder, `*.csv` by name, as `shoal-edge --data FOLDER` reads them: a header, and then a sample a row. A column `t` is
 * ignored, `label` is a class, by its number or by a name that `classes.txt` lists one a line; `label.NAME` is 1 or 0, `target.NAME` a
 * quantity, and all others are channels. An empty cell says nothing.
 *
 * @throws DataException there is none, one cannot be read, or their channels differ; or a class is listed twice
 */
public fun readRecordings(folder: File): List<Recording> {
    val files = folder.listFiles { file -> !file.name.startsWith(".") && file.extension in ENDS }.orEmpty().sortedBy { it.name }
    if (files.isEmpty()) throw DataException("data folder $folder: expected recordings as *.csv")
    files.firstOrNull { it.extension != ENDS[0] }?.let { throw DataException("$it: expected recordings as *.csv, which a phone reads") }
    val list = File(folder, CLASSES)
    val classes = if (list.exists()) text(list) { it.readLines().filter(String::isNotEmpty) } else emptyList()
    val twice = classes.groupBy { it }.values.firstOrNull { it.size > 1 }
    if (twice != null) throw DataException("$list: it lists '${twice[0]}' twice: expected each class once")
    val (first, recording) = readRecording(files[0], classes)
    return listOf(recording) + files.drop(1).map { file ->
        val (channels, made) = readRecording(file, classes)
        if (channels != first) throw DataException("$file: channels $channels, ${files[0].name} has $first")
        made
    }
}

/** One file of [readRecordings], and the names of its channels; [classes] are the names of classes, none where they are numbers. */
@InternalShoalApi
public fun readRecording(file: File, classes: List<String>): Pair<List<String>, Recording> = text(file) { reader ->
    val rows = rows(reader).iterator()
    val header = Header(file, if (rows.hasNext()) rows.next() else emptyList())
    val (samples, labels, said) = Triple(ArrayList<FloatArray>(), ArrayList<Long>(), ArrayList<Double>())
    for ((number, row) in rows.withIndex()) {
        val line = Line(header, number + 2, row)
        samples += FloatArray(header.places.size) { line.sample(header.places[it]) }
        labels += if (header.label < 0) NO_LABEL else line.label(header.label, classes)
        header.said.mapTo(said) { line.said(it) }
    }
    val width = header.places.size
    val made = Tensor.of(FloatArray(samples.size * width) { samples[it / width][it % width] }, listOf(samples.size, width))
    val names = header.said.map { header.names[it].substringAfter('.') }
    val own = if (names.isEmpty()) Recording(made, labels.toLongArray()) else Recording(made, NamedLabels(names, header.areQuantities, said.toDoubleArray()))
    Pair(header.places.map { header.names[it] }, own)
}

/** What a header says: the [places] of channels, of the [label], -1 where there is none, and of what is [said] by name. */
private class Header(val file: File, val names: List<String>) {
    val label = names.indexOf(LABEL)
    val areQuantities = names.any { it.startsWith(TARGET) }
    val said = names.indices.filter { names[it].startsWith(NAMED) || names[it].startsWith(TARGET) }
    val places = names.indices.filter { names[it] != TIME && it != label && it !in said }

    init {
        val kinds = listOf(label >= 0, names.any { it.startsWith(NAMED) }, areQuantities)
        val near = names.firstOrNull { it !in setOf(TIME, LABEL) && it.lowercase() in setOf(TIME, LABEL) }
        val expected = when {
            names.distinct().size < names.size -> "a name of its own for each column"
            near != null -> "'${near.lowercase()}' for '$near', or another name for a channel"
            kinds.count { it } > 1 -> "$LABEL, or ${NAMED}NAME of each name, or ${TARGET}NAME of each quantity, not both"
            NAMED in names || TARGET in names -> "a name of its own for each after the point"
            places.isEmpty() -> "a channel"
            else -> null
        }
        if (expected != null) throw DataException("$file: header $names: expected $expected")
    }
}

/** A row of cells. */
private class Line(private val header: Header, private val number: Int, private val row: List<String>) {
    init {
        if (row.size > header.names.size) wrong("${row.size} cells", "${header.names.size}, as the header has")
    }

    /** A channel's value. */
    fun sample(place: Int): Float = number(place).toFloat().also { if (!it.isFinite()) wrong(place, FINITE) }

    /** What a column of a name or a quantity says; NaN where it says nothing. */
    fun said(place: Int): Double {
        if (cell(place).isEmpty()) return Double.NaN
        val number = number(place)
        val fits = if (header.areQuantities) Math.abs(number) <= Float.MAX_VALUE else number == 0.0 || number == 1.0
        if (!fits) wrong(place, if (header.areQuantities) "$FINITE, or nothing" else "0 or 1, or nothing")
        return number
    }

    /** The number of a class, of those that [classes] names, or of any. */
    fun label(place: Int, classes: List<String>): Long {
        val text = cell(place)
        if (text.isEmpty()) return NO_LABEL
        if (classes.isNotEmpty()) return classes.indexOf(text).toLong().also { if (it < 0) wrong(place, "one of $classes, or nothing") }
        val whole = text.removeSuffix(".0") // as programs write whole numbers of a column with gaps
        if (!WHOLE.matches(whole)) wrong(place, "a number, or a name that $CLASSES beside the recording lists one a line")
        return BigInteger(whole).takeIf { it.signum() >= 0 && it <= LARGEST_CLASS }?.toLong() ?: wrong(place, "a class from 0 to $LARGEST_CLASS")
    }

    private fun number(place: Int): Double =
        cell(place).takeIf { text -> text.all { it in NUMERALS } }?.toDoubleOrNull() ?: wrong(place, FINITE)

    private fun cell(place: Int): String = row.getOrNull(place) ?: wrong("${row.size} cells", "${header.names.size}, as the header has")

    private fun wrong(place: Int, expected: String): Nothing = wrong("${header.names[place]} is '${row[place]}'", expected)

    private fun wrong(what: String, expected: String): Nothing = throw DataException("${header.file}, line $number: $what: expected $expected")

    private companion object {
        const val FINITE = "a finite number"
        const val NUMERALS = "0123456789+-.eE"
        val WHOLE = Regex("[+-]?[0-9]+")
        val LARGEST_CLASS: BigInteger = BigInteger.valueOf(65_535)
    }
}

/** The text of a file in UTF-8, with or without a mark at its beginning. */
private fun <T> text(file: File, read: (BufferedReader) -> T): T = try {
    val decoder = Charsets.UTF_8.newDecoder().onMalformedInput(CodingErrorAction.REPORT).onUnmappableCharacter(CodingErrorAction.REPORT)
    InputStreamReader(file.inputStream(), decoder).buffered().use { reader ->
        reader.mark(1)
        if (reader.read() != MARK) reader.reset()
        read(reader)
    }
} catch (error: CharacterCodingException) {
    throw DataException("$file: expected text in UTF-8")
} catch (error: IOException) {
    throw DataException("$file: not readable: ${error.message}")
}

private const val MARK = 0xFEFF

/** Rows of comma-separated cells without the blanks around them; a cell in quotation marks may hold commas and line breaks. Empty lines are none. */
private fun rows(reader: Reader): Sequence<List<String>> = sequence {
    var cells = ArrayList<String>()
    val cell = StringBuilder()
    var quoted = false
    var started = false // whether the line has anything
    var at = reader.read()
    while (at >= 0) {
        val char = at.toChar()
        var next = reader.read()
        when {
            quoted && char == '"' && next == '"'.code -> { cell.append('"'); next = reader.read() }
            quoted && char == '"' -> quoted = false
            quoted -> cell.append(char)
            char == '"' && cell.isEmpty() -> { quoted = true; started = true }
            char == ',' -> { cells.add(cell.toString().trim()); cell.setLength(0); started = true }
            char == '\n' || char == '\r' -> {
                if (started) yield(cells.apply { add(cell.toString().trim()) })
                cells = ArrayList()
                cell.setLength(0)
                started = false
            }
            else -> { cell.append(char); started = true }
        }
        at = next
    }
    if (started) yield(cells.apply { add(cell.toString().trim()) })
}
