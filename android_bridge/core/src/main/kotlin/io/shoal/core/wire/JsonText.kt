package io.shoal.core.wire

import java.math.BigDecimal
import java.math.MathContext
import java.math.RoundingMode

/**
 * Return maps, lists, text, numbers, booleans and null as JSON without spaces, in the bytes that
 * msgspec writes: text is escaped only where it must be, floating-point numbers are written by
 * [formatDouble].
 */
internal fun jsonText(value: Any?): String = StringBuilder().apply { appendJson(value) }.toString()

private fun StringBuilder.appendJson(value: Any?) {
    when (value) {
        null, is Boolean, is Int, is Long -> append(value)
        is Double -> append(formatDouble(value))
        is String -> appendJsonString(value)
        is Map<*, *> -> appendAll(value.entries, '{', '}') { (key, item) ->
            appendJsonString(key as String)
            append(':')
            appendJson(item)
        }
        is List<*> -> appendAll(value, '[', ']') { appendJson(it) }
        else -> throw IllegalArgumentException("${value::class.java.name} has no JSON form")
    }
}

private inline fun <T> StringBuilder.appendAll(items: Iterable<T>, open: Char, close: Char, item: (T) -> Unit) {
    append(open)
    items.forEachIndexed { i, each ->
        if (i > 0) append(',')
        item(each)
    }
    append(close)
}

internal fun StringBuilder.appendJsonString(text: String) {
    append('"')
    for (c in text) {
        when (c) {
            '"' -> append("\\\"")
            '\\' -> append("\\\\")
            '\b' -> append("\\b")
            '\u000c' -> append("\\f")
            '\n' -> append("\\n")
            '\r' -> append("\\r")
            '\t' -> append("\\t")
            else -> if (c < ' ') append("\\u00").append(HEX[c.code shr 4]).append(HEX[c.code and 15]) else append(c)
        }
    }
    append('"')
}

/**
 * Return the shortest decimal that is read back as the same number, and of those the nearest (R.
 * Giulietti. The Schubfach way to render doubles, 2020, section 2; found here by trying, which is
 * slow and short): `1.5`, `100000.0`, `1e-6`, `1.5e16`. The result is `null` if the number is not
 * finite, since JSON has no such number.
 */
internal fun formatDouble(value: Double): String {
    if (!value.isFinite()) return "null"
    val sign = if (1 / value < 0 || value < 0) "-" else ""
    if (value == 0.0) return "${sign}0.0"
    val shortest = shortestDecimal(Math.abs(value)).stripTrailingZeros()
    val digits = shortest.unscaledValue().toString()
    val point = digits.length - shortest.scale()
    return sign + when {
        digits.length <= point && point <= 16 -> digits + "0".repeat(point - digits.length) + ".0"
        point in 1..16 -> digits.substring(0, point) + "." + digits.substring(point)
        point in -4..0 -> "0." + "0".repeat(-point) + digits
        else -> digits.take(1) + (if (digits.length > 1) "." + digits.substring(1) else "") + "e" + (point - 1)
    }
}

private fun shortestDecimal(value: Double): BigDecimal {
    val exact = BigDecimal(value)
    for (digits in 1..16) {
        for (rounding in ROUNDINGS) {
            val near = exact.round(MathContext(digits, rounding))
            if (near.toString().toDouble() == value) return near
        }
    }
    return exact.round(MathContext(17, RoundingMode.HALF_EVEN))
}

/**
 * Rounding modes to try, the nearest decimal first. Beside a power of two, the nearest may be read
 * back as the number below, and one that is farther away is correct.
 */
private val ROUNDINGS = listOf(RoundingMode.HALF_EVEN, RoundingMode.FLOOR, RoundingMode.CEILING)

private const val HEX = "0123456789abcdef"
