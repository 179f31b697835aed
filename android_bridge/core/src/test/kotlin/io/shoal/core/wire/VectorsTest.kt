package io.shoal.core.wire

import io.shoal.core.WireException
import io.shoal.core.fromPython
import io.shoal.core.repository
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.TestFactory
import java.io.File
import kotlin.test.Test
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue

/** The vectors that every implementation of the protocol is held to, and messages that the Python side made up. */
class VectorsTest {
    private val golden = File(repository, "wire/vectors/golden")

    @TestFactory
    fun `golden message is read and written to the same bytes`() = tests(golden, ".json") { payload ->
        assertContentEquals(payload, encode(decodeAny(payload)))
    }

    @Test
    fun `golden update is read and written to the same bytes`() {
        val payload = File(golden, "update.safetensors").readBytes()
        val (update, tensors) = decodeUpdate(payload)
        assertEquals(Metrics(63, 41.25, 50), update.evaluated)
        assertContentEquals(floatArrayOf(0.5f, -0.25f, 1f, 0f), tensors.getValue("delta/head.weight").toFloatArray())
        assertContentEquals(payload, encodeUpdate(update, tensors))
    }

    @Test
    fun `golden tensor file is read and written to the same bytes`() {
        val payload = File(golden, "tensors.safetensors").readBytes()
        assertContentEquals(payload, encodeTensors(decodeTensors(payload).tensors))
    }

    @TestFactory
    fun `hostile message is refused`() = tests(File(repository, "wire/vectors/hostile"), ".json") { payload ->
        assertFailsWith<WireException> { decodeAny(payload) }
    }

    @TestFactory
    fun `hostile tensor file is refused`() = tests(File(repository, "wire/vectors/hostile"), ".safetensors") { payload ->
        assertFailsWith<WireException> { decodeTensors(payload) }
    }

    @Test
    fun `made-up message is read and written to the same bytes`() {
        val lines = fromPython("messages.jsonl").readLines()
        assertTrue(lines.size >= 200)
        for (line in lines) assertEquals(line, encode(decodeAny(line.toByteArray())).decodeToString())
    }

    @Test
    fun `made-up tensor file is read and written to the same bytes`() {
        val files = fromPython("tensors").listFiles()!!
        assertTrue(files.size >= 30)
        for (file in files) {
            val (tensors, message) = decodeTensors(file.readBytes())
            assertContentEquals(file.readBytes(), encodeTensors(tensors, message), file.name)
        }
    }

    private fun tests(folder: File, suffix: String, body: (ByteArray) -> Unit): List<DynamicTest> {
        val files = folder.listFiles()!!.filter { it.name.endsWith(suffix) }.sorted()
        assertTrue(files.size >= 10)
        return files.map { DynamicTest.dynamicTest(it.name) { body(it.readBytes()) } }
    }
}
