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
import java.text.Normalizer

/**
 * Prefixes of columns of recordings: a name that applies or not, a quantity; and names of columns
 * that are not channels.
 */
internal const val NAMED = "label."
internal const val TARGET = "target."
internal const val LABEL = "label"
private val TIMES = setOf(
    "seconds_elapsed", "t", "time", "timestamp", "creation_time", "arrival_time", "ts", "elapsed", "elapsed_time", "time_elapsed", "sample_time",
    "epoch", "unix", "unixtime", "datetime", "date_time", "millis", "milliseconds", "ms", "seconds", "sec", "activityminute",
    "activityhour", "sleepday", "zeitstempel", "zeit", "uhrzeit", "horodatage", "temps", "heure", "marca_de_tiempo", "tiempo", "hora", "orario",
    "ora", "tijd", "date", "datum", "fecha", "jour", "giorno",
)
private val TIME = Regex("(^|.*_)(time|timestamp|datetime|timestamps|date|epoch)(_(s|ms|us|ns|sec|utc|local|txt|unix))?(_cal)?|.*(timestamp|time)_?since.*")
private val LABELS = listOf(
    "label", "labels", "class", "activity", "activity_name", "activity_label", "activityname", "class_label", "class_name", "annotation", "gt",
    "ground_truth", "target", "behaviour", "behavior", "activity_type", "klasse", "activity_id", "activityid", "class_id", "label_id", "aktivitat",
    "aktivitaet", "tatigkeit", "taetigkeit", "activite", "classe", "etiquette", "actividad", "clase", "etiqueta", "attivita", "etichetta",
    "atividade", "activiteit",
)
private val PART_OF_LABEL = Regex("labels?(_.+|\\d+)")
private val OTHER_LABEL = Regex("(activity|class|gt)_?\\d+")
private val OTHERS = setOf(
    "person", "subject", "user", "participant", "volunteer", "owner", "patient", "pid", "person_id", "subject_id", "user_id", "participant_id",
    "patient_id", "device_id", "subjectid", "userid", "personid", "participantid", "deviceid", "", "index", "idx", "row", "row_id", "id", "seq",
    "frame", "level_0", "proband", "proband_id", "proband_nr", "probanden_id", "person_nr", "subject_nr", "subject_no",
    "versuchsperson", "teilnehmer", "nutzer", "benutzer", "personne", "sujet", "utilisateur", "persona", "sujeto", "usuario", "participante",
    "soggetto", "utente", "pessoa", "sujeito",
)
private val UNNAMED = Regex("(unnamed|index_level)(_\\d+)*")
private val UNIT = Regex("(.*?)[\\s_]*[(\\[]([^)\\]]*)[)\\]]\\s*")
private const val CLASSES = "classes.txt"
private val ENDS = listOf("csv", "parquet")

/**
 * Return the recordings of a folder, `*.csv` by name, in the format of `shoal-edge --data FOLDER`:
 * a header, and then one sample per row. Columns have their roles by their names, as in
 * `edge_client/data/tables/roles.py`: times, persons and numbers of rows are ignored. `label`, or
 * another usual name, is a class, by its number or by a name that `classes.txt` lists, one per line.
 * `label.NAME` is 1 or 0, `target.NAME` a quantity, and all other columns are channels. An empty
 * cell has no label. The rate is not read: all recordings must have that of the bundle, without gaps.
 * It reads files: do not call it on the main thread.
 *
 * @throws DataException there are no recordings, one cannot be read, their channels differ, or a
 *   class is listed twice
 */
public fun readRecordings(folder: File): List<Recording> {
    val files = folder.listFiles { file -> !file.name.startsWith(".") && file.extension in ENDS }.orEmpty().sortedBy { it.name }
    if (files.isEmpty()) throw DataException("data folder $folder must have recordings as *.csv")
    files.firstOrNull { it.extension != ENDS[0] }?.let { throw DataException("$it is not *.csv, the only recordings that a phone reads") }
    val list = File(folder, CLASSES)
    val classes = if (list.exists()) text(list) { it.readLines().filter(String::isNotEmpty) } else emptyList()
    val twice = classes.groupBy { it }.values.firstOrNull { it.size > 1 }
    if (twice != null) throw DataException("$list lists class '${twice[0]}' twice; list each class once")
    val (first, recording) = readRecording(files[0], classes)
    return listOf(recording) + files.drop(1).map { file ->
        val (channels, other) = readRecording(file, classes)
        if (channels != first) throw DataException("$file: channels must be $first, as in ${files[0].name}, got $channels")
        other
    }
}

/**
 * Return the names of the channels of one file of [readRecordings], and the recording. [classes]
 * are the names of classes, none if they are numbers.
 */
@InternalShoalApi
public fun readRecording(file: File, classes: List<String>): Pair<List<String>, Recording> = text(file) { reader ->
    val rows = rows(reader).iterator()
    val header = Header(file, if (rows.hasNext()) rows.next() else emptyList())
    val (samples, labels, values) = Triple(ArrayList<FloatArray>(), ArrayList<Long>(), ArrayList<Double>())
    for ((number, row) in rows.withIndex()) {
        val line = Line(header, number + 2, row)
        samples += FloatArray(header.places.size) { line.sample(header.places[it]) }
        labels += if (header.label < 0) NO_LABEL else line.label(header.label, classes)
        header.valueColumns.mapTo(values) { line.value(it) }
    }
    val width = header.places.size
    val sampleTensor = Tensor.of(FloatArray(samples.size * width) { samples[it / width][it % width] }, listOf(samples.size, width))
    val names = header.valueColumns.map { header.names[it].substringAfter('.') }
    val recording = if (names.isEmpty()) Recording(sampleTensor, labels.toLongArray()) else Recording(sampleTensor, NamedLabels(names, header.areQuantities, values.toDoubleArray()))
    Pair(header.places.map { header.names[it] }, recording)
}

/**
 * Header of a file: the [places] of channels, of the [label] (-1 if there is none) and of
 * [valueColumns], which are names or quantities.
 */
private class Header(val file: File, val names: List<String>) {
    private val words = names.map(::plain)
    private val classes = names.indices.filter { words[it] in LABELS }
    val areQuantities = names.any { it.startsWith(TARGET) }
    val valueColumns = names.indices.filter { names[it].startsWith(NAMED) || names[it].startsWith(TARGET) }
    val label = if (valueColumns.isNotEmpty()) names.indexOf(LABEL) else classes.minByOrNull { LABELS.indexOf(words[it]) } ?: -1
    private val others = names.indices.filter {
        it !in valueColumns && it !in classes && words[it] !in OTHERS && words[it] !in TIMES && !TIME.matches(words[it]) && !UNNAMED.matches(words[it])
    }
    private val parts = others.filter { PART_OF_LABEL.matches(words[it]) }
    val places = others.filter { it !in parts && !((label >= 0 || valueColumns.isNotEmpty()) && OTHER_LABEL.matches(words[it])) }

    init {
        val kinds = listOf(label >= 0, names.any { it.startsWith(NAMED) }, areQuantities)
        val several = classes.filter { !words[it].endsWith("id") }.ifEmpty { parts.filter { classes.isEmpty() } }.takeIf { it.size > 1 && valueColumns.isEmpty() && LABEL !in words }
        val expected = when {
            names.distinct().size < names.size -> "have a name of its own for each column"
            several != null -> "have one column of classes, or call it '$LABEL'"
            kinds.count { it } > 1 -> "have labels of one kind: $LABEL, or ${NAMED}NAME for each name, or ${TARGET}NAME for each quantity"
            NAMED in names || TARGET in names -> "have different names after the point"
            places.isEmpty() -> "have a channel"
            else -> null
        }
        if (expected != null) throw DataException("$file: the header must $expected, got $names")
    }
}

/** Return a column's name in lower case, without its unit and accents, with `_` between its words. */
private fun plain(name: String): String {
    val letters = Normalizer.normalize((UNIT.matchEntire(name)?.groupValues?.get(1) ?: name).lowercase(), Normalizer.Form.NFD)
    return letters.replace(Regex("\\p{M}+"), "").replace(Regex("[^\\p{L}\\p{N}]+"), "_").trim('_')
}

/** Row of cells. */
private class Line(private val header: Header, private val number: Int, private val row: List<String>) {
    init {
        if (row.size > header.names.size) wrong("${row.size} cells", "${header.names.size}, as the header has")
    }

    /** Return the value of a channel. */
    fun sample(place: Int): Float = number(place).toFloat().also { if (!it.isFinite()) wrong(place, FINITE) }

    /** Return the value of a name or a quantity, or NaN if the cell is empty. */
    fun value(place: Int): Double {
        if (cell(place).isEmpty()) return Double.NaN
        val number = number(place)
        val fits = if (header.areQuantities) Math.abs(number) <= Float.MAX_VALUE else number == 0.0 || number == 1.0
        if (!fits) wrong(place, if (header.areQuantities) "$FINITE, or nothing" else "0 or 1, or nothing")
        return number
    }

    /** Return the number of a class: of one of [classes], or any number if there are none. */
    fun label(place: Int, classes: List<String>): Long {
        val text = cell(place)
        if (text.isEmpty()) return NO_LABEL
        if (classes.isNotEmpty()) return classes.indexOf(text).toLong().also { if (it < 0) wrong(place, "one of $classes, or nothing") }
        val whole = if ('.' in text && text.all { it in NUMERALS }) withoutPoint(text) else text
        if (!WHOLE.matches(whole)) wrong(place, "a number, or a name that $CLASSES beside the recording lists one a line")
        return BigInteger(whole).takeIf { it.signum() >= 0 && it <= LARGEST_CLASS }?.toLong() ?: wrong(place, "a class from 0 to $LARGEST_CLASS")
    }

    /** Return a number with a point, as programs write those of a column with gaps, as the whole number that it is. */
    private fun withoutPoint(text: String): String =
        text.toDoubleOrNull()?.takeIf { it == Math.rint(it) && Math.abs(it) < LARGEST_WHOLE }?.toLong()?.toString() ?: text

    private fun number(place: Int): Double =
        cell(place).takeIf { text -> text.all { it in NUMERALS } }?.toDoubleOrNull() ?: wrong(place, FINITE)

    private fun cell(place: Int): String = row.getOrNull(place) ?: wrong("${row.size} cells", "${header.names.size}, as the header has")

    private fun wrong(place: Int, expected: String): Nothing = wrong("${header.names[place]} is '${row[place]}'", expected)

    private fun wrong(what: String, expected: String): Nothing = throw DataException("${header.file}, line $number: $what: expected $expected")

    private companion object {
        const val FINITE = "a finite number"
        const val NUMERALS = "0123456789+-.eE"
        const val LARGEST_WHOLE = 1e15
        val WHOLE = Regex("[+-]?[0-9]+")
        val LARGEST_CLASS: BigInteger = BigInteger.valueOf(65_535)
    }
}

/** Read the text of a file in UTF-8, with or without a byte order mark. */
private fun <T> text(file: File, read: (BufferedReader) -> T): T = try {
    val decoder = Charsets.UTF_8.newDecoder().onMalformedInput(CodingErrorAction.REPORT).onUnmappableCharacter(CodingErrorAction.REPORT)
    InputStreamReader(file.inputStream(), decoder).buffered().use { reader ->
        reader.mark(1)
        if (reader.read() != MARK) reader.reset()
        read(reader)
    }
} catch (error: CharacterCodingException) {
    throw DataException("$file is not text in UTF-8")
} catch (error: IOException) {
    throw DataException("$file: not readable: ${error.message}")
}

private const val MARK = 0xFEFF

/**
 * Return rows of comma-separated cells without surrounding blanks. A cell in quotation marks may
 * contain commas and line breaks. Empty lines are skipped.
 */
private fun rows(reader: Reader): Sequence<List<String>> = sequence {
    var cells = ArrayList<String>()
    val cell = StringBuilder()
    var quoted = false
    var started = false // true if the line is not empty
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
