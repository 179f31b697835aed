package io.shoal.core

import io.shoal.core.wire.JsonArray
import io.shoal.core.wire.JsonNull
import io.shoal.core.wire.JsonNumber
import io.shoal.core.wire.JsonObject
import io.shoal.core.wire.Window
import io.shoal.core.wire.parseJson
import java.io.File
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertSame
import kotlin.test.assertTrue

class FittingTest {
    private fun window(vocabulary: Int) = Window(listOf("event"), 2, 2, vocabulary = vocabulary)

    @Test
    fun `ids are refused where every implementation refuses them`() {
        val cases = VECTORS
        assertTrue(cases.size >= 9)
        for ((vocabulary, windows, refused) in cases) {
            val x = Tensor.of(windows.flatten().toLongArray(), listOf(windows.size, 1, 2))
            if (refused == null) {
                val tensor = fitting(x, window(vocabulary), "x")
                assertEquals(if (vocabulary > 0) DType.INT64 else DType.FLOAT32, tensor.dtype)
            } else {
                val error = assertFailsWith<DataException> { fitting(x, window(vocabulary), "x") }
                assertTrue(error.message.orEmpty().endsWith("in window $refused"), error.message)
            }
        }
    }

    @Test
    fun `measurements are no ids and whole numbers are measurements where no ids are asked for`() {
        val measured = Tensor.of(floatArrayOf(1f, 2f), listOf(1, 1, 2))
        assertSame(measured, fitting(measured, window(0), "x"))
        assertFailsWith<DataException> { fitting(measured, window(24), "x") }
        assertEquals(measured, fitting(Tensor.of(longArrayOf(1, 2), listOf(1, 1, 2)), window(0), "x"))
    }

    private data class Case(val vocabulary: Int, val windows: List<List<Long>>, val refused: Long?)

    private companion object {
        val VECTORS = (parseJson(File(repository, "wire/vectors/ids.json").readBytes()) as JsonArray).items.map { it as JsonObject }.map { case ->
            fun number(value: Any?) = (value as JsonNumber).text.toLong()
            val windows = (case.fields.getValue("windows") as JsonArray).items.map { row -> (row as JsonArray).items.map(::number) }
            val refused = case.fields.getValue("refused")
            Case(number(case.fields.getValue("vocabulary")).toInt(), windows, if (refused is JsonNull) null else number(refused))
        }
    }
}
