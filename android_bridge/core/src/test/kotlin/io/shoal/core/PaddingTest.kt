package io.shoal.core

import io.shoal.core.wire.Fields
import io.shoal.core.wire.JsonArray
import io.shoal.core.wire.Window
import io.shoal.core.wire.parseJson
import java.io.File
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue

class PaddingTest {
    private val cases = (parseJson(File(repository, "wire/vectors/padding.json").readBytes()) as JsonArray).items.map { Fields(it, "padding.json") }

    @Test
    fun `windows of different lengths are padded, or refused, as every implementation does`() {
        val windowCases = cases.filter { it.has("windows") }
        assertTrue(windowCases.size >= 8)
        for (case in windowCases) {
            val (windows, length) = Pair(case.list("windows") { it, at -> numbers(Fields(it, at)) }, case.int("length", 1L..9L).toInt())
            val expected = case.objectOrNull("padded") { numbers(it) }
            if (expected == null) assertFailsWith<DataException> { padded(windows, length) } else assertEquals(expected, padded(windows, length))
        }
    }

    @Test
    fun `shorter windows are padded to those of a bundle that has such`() {
        val tensorCases = cases.filter { it.has("x") }
        assertTrue(tensorCases.size >= 6)
        for (case in tensorCases) {
            val length = case.int("length", 1L..9L).toInt()
            val window = Window(case.strings("channels"), length, length)
            assertEquals(numbers(case.obj("fitted")), fitting(numbers(case.obj("x")), window, "windows"))
        }
    }

    @Test
    fun `shorter windows of whole numbers are asked for as those with a point are`() {
        val window = Window(listOf("ax", PRESENCE), 4, 4)
        val (whole, others) = Pair(Tensor.of(longArrayOf(5, 6, 1, 1), listOf(1, 2, 2)), Tensor.of(floatArrayOf(5f, 6f, 1f, 1f), listOf(1, 2, 2)))
        val expected = Tensor.of(floatArrayOf(5f, 6f, 0f, 0f, 1f, 1f, 0f, 0f), listOf(1, 2, 4))
        assertEquals(listOf(expected, expected), listOf(whole, others).map { examples(it, window, "har") })
        for (wrong in listOf(listOf(1, 2, 5), listOf(0, 2, 4), listOf(1, 1, 2), listOf(4), emptyList())) {
            assertFailsWith<DataException> { examples(Tensor.allocate(DType.FLOAT32, wrong), window, "har") }
        }
    }
}
