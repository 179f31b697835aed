package io.shoal.core.wire

import io.shoal.core.LimitExceededException
import io.shoal.core.MalformedException
import io.shoal.core.fromPython
import org.junit.jupiter.params.ParameterizedTest
import org.junit.jupiter.params.provider.ValueSource
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue

class JsonTest {
    private fun parse(text: String) = parseJson(text.toByteArray())

    @ParameterizedTest
    @ValueSource(
        strings = [
            "", " ", "{", "[1,]", "{\"a\":1,}", "{\"a\"}", "{a:1}", "01", "-", "1.", ".5", "1e", "+1", "nul", "truex", "\"", "\"\\x\"", "\"\\u12\"",
            "\"\\ud800\"", "\"\\udc00\"", "\"\\ud800\\u0041\"", "\"\u0001\"", "1 2", "NaN", "Infinity", "\uFEFF1", "[\"a\" \"b\"]", "\"\\uFFFG\"",
        ],
    )
    fun `what is not JSON is refused`(text: String) {
        assertFailsWith<MalformedException> { parse(text) }
    }

    @Test
    fun `values are read`() {
        val expected = JsonObject(
            mapOf("a" to JsonArray(listOf(JsonNumber("-1.5e3"), JsonBoolean(true), JsonNull)), "\u00e9\n" to JsonString("\ud83d\ude00/")),
        )
        assertEquals(expected, parse(""" {"a" : [-1.5e3, true,null] , "\u00e9\n":"\ud83d\uDE00\/"} """))
    }

    @Test
    fun `bytes that are not UTF-8 are refused`() {
        assertFailsWith<MalformedException> { parseJson(byteArrayOf('"'.code.toByte(), -1, '"'.code.toByte())) }
    }

    @Test
    fun `depth is bounded`() {
        parse("[".repeat(MAX_DEPTH) + "]".repeat(MAX_DEPTH))
        assertFailsWith<MalformedException> { parse("[".repeat(MAX_DEPTH + 2) + "]".repeat(MAX_DEPTH + 2)) }
        assertFailsWith<MalformedException> { parse("[".repeat(60_000)) }
    }

    @Test
    fun `text is escaped as little as must be`() {
        assertEquals("\"\\u0000\\u001f\u007f\\b\\f\\n\\r\\t\\\"\\\\/é\u2028\"", jsonText("\u0000\u001f\u007f\b\u000c\n\r\t\"\\/é\u2028"))
    }

    @Test
    fun `numbers are written as msgspec does`() {
        val expected = mapOf(
            1e16 to "1e16", 1e15 to "1000000000000000.0", 9007199254740992.0 to "9007199254740992.0", 1e-5 to "0.00001", 1.5e-5 to "0.000015",
            1e-6 to "1e-6", 1.5e-7 to "1.5e-7", 5e-324 to "5e-324", Double.MAX_VALUE to "1.7976931348623157e308", 0.1 to "0.1", -0.0 to "-0.0",
            0.0 to "0.0", 100000.0 to "100000.0", 5.684341886080802e-14 to "5.684341886080802e-14", 2e-3 to "0.002", -12.5 to "-12.5",
            Double.NaN to "null", Double.NEGATIVE_INFINITY to "null", 2.2250738585072014e-308 to "2.2250738585072014e-308",
        )
        for ((number, text) in expected) assertEquals(text, formatDouble(number))
    }

    @Test
    fun `made-up numbers are written as msgspec does`() {
        val lines = fromPython("floats.txt").readLines()
        assertTrue(lines.size >= 5000)
        for (line in lines) {
            val (bits, text) = line.split(' ')
            assertEquals(text, formatDouble(java.lang.Double.longBitsToDouble(java.lang.Long.parseUnsignedLong(bits, 16))))
        }
    }

    @Test
    fun `a long message is refused before it is parsed`() {
        assertFailsWith<LimitExceededException> { decodeAny(ByteArray(MESSAGE_BYTES + 1)) }
    }
}
