package io.shoal.core.wire

import io.shoal.core.MalformedException
import java.nio.ByteBuffer
import java.nio.charset.CharacterCodingException
import java.nio.charset.CodingErrorAction

/** JSON value. */
internal sealed interface Json {
    /** Name of its type in errors. */
    val kind: String
}

internal data class JsonObject(val fields: Map<String, Json>) : Json {
    override val kind get() = "object"
}

internal data class JsonArray(val items: List<Json>) : Json {
    override val kind get() = "array"
}

internal data class JsonString(val value: String) : Json {
    override val kind get() = "str"
}

/** Number as it was written: its text shows if it is an integer. */
internal data class JsonNumber(val text: String) : Json {
    val isInteger: Boolean get() = text.none { it == '.' || it == 'e' || it == 'E' }
    override val kind get() = if (isInteger) "int" else "float"
}

internal data class JsonBoolean(val value: Boolean) : Json {
    override val kind get() = "bool"
}

internal object JsonNull : Json {
    override val kind get() = "null"
}

/**
 * Parse one JSON value of RFC 8259 from UTF-8, as strictly as the Python side: no byte order mark,
 * no lone surrogates, no control characters in strings. If a key comes twice, the last value
 * counts. The caller bounds the size. Values nest at most [MAX_DEPTH] deep.
 *
 * @throws MalformedException it is anything else; the text says where
 */
internal fun parseJson(payload: ByteArray, from: Int = 0, length: Int = payload.size - from): Json {
    val decoder = Charsets.UTF_8.newDecoder().onMalformedInput(CodingErrorAction.REPORT)
    val text = try {
        decoder.decode(ByteBuffer.wrap(payload, from, length)).toString()
    } catch (_: CharacterCodingException) {
        throw MalformedException("JSON of $length bytes: not UTF-8")
    }
    return JsonReader(text).document()
}

internal const val MAX_DEPTH = 64

private class JsonReader(private val text: String) {
    private var at = 0

    fun document(): Json {
        val value = value(0)
        skipSpace()
        if (at != text.length) fail("trailing characters")
        return value
    }

    private fun value(depth: Int): Json {
        if (depth > MAX_DEPTH) fail("values nest more than $MAX_DEPTH deep")
        skipSpace()
        return when (val next = peek()) {
            '{' -> obj(depth)
            '[' -> array(depth)
            '"' -> JsonString(string())
            't' -> word("true", JsonBoolean(true))
            'f' -> word("false", JsonBoolean(false))
            'n' -> word("null", JsonNull)
            else -> if (next == '-' || next in '0'..'9') number() else fail("invalid character")
        }
    }

    private fun obj(depth: Int): Json {
        val fields = LinkedHashMap<String, Json>()
        at++
        if (endsWith('}')) return JsonObject(fields)
        do {
            skipSpace()
            if (peek() != '"') fail("expected a key")
            val key = string()
            skipSpace()
            if (peek() != ':') fail("expected ':'")
            at++
            fields[key] = value(depth + 1)
        } while (another('}'))
        return JsonObject(fields)
    }

    private fun array(depth: Int): Json {
        val items = ArrayList<Json>()
        at++
        if (endsWith(']')) return JsonArray(items)
        do items += value(depth + 1) while (another(']'))
        return JsonArray(items)
    }

    private fun string(): String {
        val built = StringBuilder()
        at++
        while (true) {
            when (val next = peek()) {
                '"' -> break
                '\\' -> escape(built)
                else -> {
                    if (next < ' ') fail("control character in a string")
                    built.append(next)
                    at++
                }
            }
        }
        at++
        return built.toString()
    }

    private fun escape(built: StringBuilder) {
        at++
        when (peek()) {
            '"', '\\', '/' -> built.append(text[at])
            'b' -> built.append('\b')
            'f' -> built.append('\u000c')
            'n' -> built.append('\n')
            'r' -> built.append('\r')
            't' -> built.append('\t')
            'u' -> return unicode(built)
            else -> fail("invalid escape")
        }
        at++
    }

    private fun unicode(built: StringBuilder) {
        val first = hex()
        built.append(first)
        if (first.isLowSurrogate()) fail("lone surrogate")
        if (first.isHighSurrogate()) {
            if (peek() != '\\') fail("lone surrogate")
            at++
            if (peek() != 'u') fail("lone surrogate")
            val second = hex()
            if (!second.isLowSurrogate()) fail("lone surrogate")
            built.append(second)
        }
    }

    private fun hex(): Char {
        var code = 0
        repeat(4) {
            at++
            val digit = Character.digit(peek(), 16)
            if (digit < 0 || peek() > 'f') fail("invalid escape")
            code = code * 16 + digit
        }
        at++
        return code.toChar()
    }

    private fun number(): Json {
        val start = at
        if (peek() == '-') at++
        if (peekOrEnd() == '0') at++ else digits()
        if (peekOrEnd() in '0'..'9') fail("invalid number")
        if (peekOrEnd() == '.') {
            at++
            digits()
        }
        if (peekOrEnd() == 'e' || peekOrEnd() == 'E') {
            at++
            if (peekOrEnd() == '+' || peekOrEnd() == '-') at++
            digits()
        }
        return JsonNumber(text.substring(start, at))
    }

    private fun digits() {
        if (peekOrEnd() !in '0'..'9') fail("invalid number")
        while (peekOrEnd() in '0'..'9') at++
    }

    private fun <T : Json> word(word: String, value: T): T {
        if (!text.startsWith(word, at)) fail("invalid character")
        at += word.length
        return value
    }

    private fun another(end: Char): Boolean {
        skipSpace()
        val next = peek()
        if (next != ',' && next != end) fail("expected ',' or '$end'")
        at++
        return next == ','
    }

    private fun endsWith(end: Char): Boolean {
        skipSpace()
        return (peek() == end).also { if (it) at++ }
    }

    private fun skipSpace() {
        while (at < text.length && text[at] in " \t\n\r") at++
    }

    private fun peek(): Char = if (at < text.length) text[at] else fail("it ends too early")

    private fun peekOrEnd(): Char = if (at < text.length) text[at] else '\u0000'

    private fun fail(what: String): Nothing = throw MalformedException("JSON of ${text.length} characters, at character $at: $what")
}
