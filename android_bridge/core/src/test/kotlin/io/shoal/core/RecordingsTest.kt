package io.shoal.core

import io.shoal.core.wire.Fields
import io.shoal.core.wire.JsonArray
import io.shoal.core.wire.JsonString
import io.shoal.core.wire.parseJson
import org.junit.jupiter.api.io.TempDir
import java.io.File
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue

class RecordingsTest {
    @TempDir
    lateinit var folder: File

    @Test
    fun `cuts the windows that Python cuts, and refuses what Python refuses`() {
        val cases = (parseJson(File(repository, "wire/vectors/recordings.json").readBytes()) as JsonArray).items.map { Fields(it, "recordings.json") }
        assertTrue(cases.size >= 40)
        for (case in cases) {
            val (name, caseFolder) = Pair(case.string("name"), File(folder, case.string("name").hashCode().toString()).apply { mkdir() })
            for ((file, text) in case.map("files") { it, _ -> (it as JsonString).value }) File(caseFolder, file).writeText(text)
            val (length, stride, steps) = listOf("length", "stride", "steps").map { case.int(it, 0L..99L).toInt() }
            val expected = case.objectOrNull("windows") { it }
            if (expected == null) {
                assertFailsWith<DataException>(name) { windowsOf(readRecordings(caseFolder), length, stride, steps) }
                continue
            }
            val cut = windowsOf(readRecordings(caseFolder), length, stride, steps)
            assertEquals(expected.strings("names"), cut.names, name)
            val parts = mapOf("train_x" to cut.trainX, "train_y" to cut.trainY, "test_x" to cut.testX, "test_y" to cut.testY)
            for ((part, tensor) in parts + ("unlabelled_x" to cut.unlabelledX)) assertEquals(numbers(expected.obj(part)), tensor, "$name: $part")
        }
    }

    @Test
    fun `columns are put in the order of the bundle`() {
        val quantities = NamedLabels(listOf("b", "a"), true, DoubleArray(40) { if (it % 2 == 0) 2.5 else 1.5 })
        val windows = windowsOf(listOf(Recording(Tensor.allocate(DType.FLOAT32, listOf(20, 1)), quantities)), 4, 4)
        val trainY = windows.forTask(manifest("regression", listOf("a", "b"))).trainY
        assertEquals(Tensor.of(floatArrayOf(1.5f, 2.5f, 1.5f, 2.5f, 1.5f, 2.5f), listOf(3, 2)), trainY)
        assertFailsWith<DataException> { windows.forTask(manifest("regression", listOf("a", "c"))) }
        assertFailsWith<DataException> { windows.forTask(manifest("multi-label", listOf("a", "b"))) }
    }

    @Test
    fun `text of another encoding is refused`() {
        File(folder, "a.csv").writeBytes("h\u00f6he,label\n1,0\n".toByteArray(Charsets.ISO_8859_1))
        assertFailsWith<DataException> { readRecordings(folder) }
    }

    @Test
    fun `samples without a label make windows without one`() {
        val samples = Tensor.of(FloatArray(120) { it.toFloat() }, listOf(40, 3))
        val named = windowsOf(listOf(Recording(samples, LongArray(40) { if (it < 16) 1 else NO_LABEL })), 4, 4)
        assertEquals(listOf(2, 1, 6), listOf(named.numTrain, named.numTest, named.numUnlabelled))
        assertEquals(48f, named.unlabelledX.floats().get(0))
        val timed = windowsOf(listOf(Recording(samples, LongArray(40), 100.0, 2.0)), 4, 4)
        assertEquals(listOf(116.0, 118.0), timed.testBeginsS.toList())
        assertTrue(named.testBeginsS.all { it.isNaN() }, "their times are not known")
        val nameless = windowsOf(listOf(Recording(samples, LongArray(40) { NO_LABEL })), 4, 4)
        assertEquals(listOf(0, 0, 10), listOf(nameless.numTrain, nameless.numTest, nameless.numUnlabelled))
        val other = Tensor.allocate(DType.FLOAT32, listOf(1, 3, 5))
        assertFailsWith<DataException> { Windows(named.trainX, named.trainY, named.testX, named.testY, other) }
        val broken = Tensor.of(FloatArray(12) { Float.NaN }, listOf(1, 3, 4))
        assertFailsWith<DataException> { Windows(named.trainX, named.trainY, named.testX, named.testY, broken) }
    }

    @Test
    fun `recordings that cannot be used are refused`() {
        val labels = NamedLabels(listOf("a"), false, DoubleArray(29))
        assertFailsWith<DataException> { windowsOf(listOf(Recording(Tensor.allocate(DType.FLOAT32, listOf(30, 3)), labels)), 4, 4) }
        val short = Recording(Tensor.allocate(DType.FLOAT32, listOf(7, 3)), LongArray(7))
        assertFailsWith<DataException> { windowsOf(emptyList(), 8, 8) }
        assertFailsWith<DataException> { windowsOf(listOf(short), 8, 8) }
        val other = Recording(Tensor.allocate(DType.FLOAT32, listOf(90, 2)), LongArray(90))
        assertFailsWith<DataException> { windowsOf(listOf(short, other), 4, 4) }
        val broken = Recording(Tensor.of(FloatArray(90) { Float.NaN }, listOf(30, 3)), LongArray(30))
        assertFailsWith<DataException> { windowsOf(listOf(broken), 4, 4) }
    }
}
