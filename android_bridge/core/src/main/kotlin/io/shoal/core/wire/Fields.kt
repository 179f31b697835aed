package io.shoal.core.wire

import io.shoal.core.MalformedException
import java.math.BigInteger

/**
 * Reader of a JSON object, with the checks of `wire/messages.py`. Each function reads one field; a
 * field without a default must be present. Other fields are ignored. [path] names the object in
 * errors.
 */
internal class Fields(value: Json, private val path: String) {
    private val fields = (value as? JsonObject)?.fields ?: throw MalformedException("$path: expected an object, got ${value.kind}")

    fun string(key: String, default: String? = null): String =
        read(key, default) { (it as? JsonString)?.value ?: wrong(key, "str", it) }

    /** Return a text, or null if the key is missing or null. */
    fun stringOrNull(key: String): String? = if (isNull(key)) null else string(key)

    /** Return a text of at most [most] characters. */
    fun text(key: String, default: String? = null, most: Int = TEXT_LENGTH): String =
        check(key, string(key, default), "at most $most characters") { it.codePointCount(0, it.length) <= most }

    fun name(key: String, default: String? = null): String = check(key, string(key, default), "a name", ::isName)

    fun digest(key: String): String = check(key, string(key), "a SHA-256", ::isDigest)

    fun maybeDigest(key: String): String = check(key, string(key, ""), "a SHA-256 or nothing") { it.isEmpty() || isDigest(it) }

    fun randomBits(key: String): String = check(key, string(key, ""), "32 lower-case hexadecimal digits or nothing") {
        it.isEmpty() || (it.length == 32 && it.all { digit -> digit in '0'..'9' || digit in 'a'..'f' })
    }

    fun oneOf(key: String, allowed: Collection<String>, default: String? = null): String =
        check(key, string(key, default), "one of ${allowed.joinToString()}") { it in allowed }

    fun bool(key: String, default: Boolean? = null): Boolean =
        read(key, default) { (it as? JsonBoolean)?.value ?: wrong(key, "bool", it) }

    fun boolOrNull(key: String): Boolean? = if (isNull(key)) null else bool(key)

    fun int(key: String, range: LongRange, default: Long? = null): Long =
        check(key, read(key, default) { integer(key, it) }, "at least ${range.first} and at most ${range.last}") { it in range }

    fun intOrNull(key: String, range: LongRange): Long? = if (isNull(key)) null else int(key, range)

    fun count(key: String, default: Long? = null): Long = int(key, COUNT, default)

    fun positive(key: String, default: Long? = null): Long = int(key, POSITIVE, default)

    fun double(key: String, default: Double? = null, expected: String = "a number", allowed: (Double) -> Boolean = { true }): Double =
        check(key, read(key, default) { number(key, it) }, expected, allowed)

    fun doubleOrNull(key: String, expected: String, allowed: (Double) -> Boolean): Double? =
        if (isNull(key)) null else double(key, null, expected, allowed)

    /** Return a share in [0, 1). */
    fun share(key: String): Double = double(key, 0.0, "in [0, 1)") { it >= 0 && it < 1 }

    fun <T> list(key: String, default: List<T>? = null, item: (Json, String) -> T): List<T> = read(key, default) { value ->
        val items = (value as? JsonArray)?.items ?: wrong(key, "array", value)
        items.mapIndexed { i, it -> item(it, "$path.$key[$i]") }
    }

    fun strings(key: String): List<String> =
        list(key) { it, at -> (it as? JsonString)?.value ?: throw MalformedException("$at: expected str, got ${it.kind}") }

    /** Return the array of texts of a key, at most [most], or an empty one if the key is missing. */
    fun texts(key: String, most: Int): List<String> {
        val texts = list(key, emptyList()) { it, at -> (it as? JsonString)?.value ?: throw MalformedException("$at: expected str, got ${it.kind}") }
        return check(key, texts, "at most $most texts of at most $TEXT_LENGTH characters") {
            it.size <= most && it.all { text -> text.codePointCount(0, text.length) <= TEXT_LENGTH }
        }
    }

    fun <T> map(key: String, default: Map<String, T>? = null, item: (Json, String) -> T): Map<String, T> = read(key, default) { value ->
        val values = (value as? JsonObject)?.fields ?: wrong(key, "object", value)
        values.mapValues { (name, it) -> item(it, "$path.$key.${name.take(80)}") }
    }

    fun doubles(key: String, default: Map<String, Double>? = null): Map<String, Double> = map(key, default) { it, at -> number(at, it) }

    /** Return the array of sizes of a key; see [sizesOf]. */
    fun sizes(key: String): List<Int> = sizesOf(fields[key] ?: missing(key), "$path.$key")

    /** Return the array of names of a key, or null if the key is missing or null. */
    fun namesOrNull(key: String): List<String>? = if (isNull(key)) null else list(key, item = ::nameOf)

    /**
     * Return the array of names of a key, at most [most], or an empty one if the key is missing.
     */
    fun namesOrNone(key: String, most: Int): List<String> =
        check(key, list(key, emptyList(), ::nameOf), "at most $most names") { it.size <= most }

    /**
     * Return the array of SHA-256 of a key, at most [most], or null if the key is missing or null.
     */
    fun digestsOrNull(key: String, most: Int): List<String>? {
        if (isNull(key)) return null
        val digests = list(key) { it, at -> (it as? JsonString)?.value?.takeIf(::isDigest) ?: throw MalformedException("$at: expected a SHA-256") }
        return check(key, digests, "at most $most SHA-256") { it.size <= most }
    }

    private fun nameOf(value: Json, at: String): String =
        (value as? JsonString)?.value?.takeIf(::isName) ?: throw MalformedException("$at: expected a name")

    /**
     * Return the array of counts of a key, at most [most], or null if the key is missing or null.
     */
    fun countsOrNull(key: String, most: Int): List<Long>? {
        if (isNull(key)) return null
        val counts = list(key) { it, at ->
            integer(at, it).also { count -> if (count !in COUNT) throw MalformedException("$at: $count, expected a count") }
        }
        return check(key, counts, "at most $most counts") { it.size <= most }
    }

    /** Return the object of a key, read by [item], or null if the key is missing or null. */
    fun <T> objectOrNull(key: String, item: (Fields) -> T): T? = if (isNull(key)) null else item(obj(key))

    fun obj(key: String): Fields = Fields(fields[key] ?: missing(key), "$path.$key")

    /** Return true if there is a field of this name. */
    fun has(key: String): Boolean = key in fields

    private fun isNull(key: String) = (fields[key] ?: JsonNull) === JsonNull

    private inline fun <T> read(key: String, default: T?, convert: (Json) -> T): T =
        fields[key]?.let(convert) ?: default ?: missing(key)

    private inline fun <T> check(key: String, value: T, expected: String, allowed: (T) -> Boolean): T {
        if (!allowed(value)) throw MalformedException("$path.$key: ${value.toString().take(80)}, expected $expected")
        return value
    }

    private fun integer(key: String, value: Json): Long {
        if (value !is JsonNumber || !value.isInteger) wrong(key, "int", value)
        if (value.text.length > 20) throw MalformedException("$path.$key: ${value.text.take(80)} is out of range")
        return BigInteger(value.text).let { if (it.bitLength() < 64) it.toLong() else throw MalformedException("$path.$key: $it is out of range") }
    }

    private fun number(key: String, value: Json): Double {
        if (value !is JsonNumber) wrong(key, "float", value)
        val number = if (value.text == "-0") 0.0 else value.text.toDouble()
        if (!number.isFinite()) throw MalformedException("$path.$key: number out of range")
        return number
    }

    private fun missing(key: String): Nothing = throw MalformedException("$path: field '$key' is missing")

    private fun wrong(key: String, expected: String, got: Json): Nothing =
        throw MalformedException("$path.$key: expected $expected, got ${got.kind}")

    companion object {
        const val TEXT_LENGTH = 1000
        val COUNT = 0L..(1L shl 53)
        val POSITIVE = 1L..(1L shl 31)

        /** Return a whole number of at least 0. */
        fun countOf(value: Json, path: String): Long =
            (value as? JsonNumber)?.takeIf { it.isInteger }?.text?.toLongOrNull()?.takeIf { it >= 0 }
                ?: throw MalformedException("$path: expected a count")

        /** Return a list of sizes, each at least 0 and no larger than an array can be. */
        fun sizesOf(value: Json, path: String): List<Int> {
            val items = (value as? JsonArray)?.items ?: throw MalformedException("$path: expected array, got ${value.kind}")
            return items.map { size ->
                val number = (size as? JsonNumber)?.takeIf { it.isInteger }?.text?.toIntOrNull()
                if (number == null || number < 0) throw MalformedException("$path: expected a list of sizes")
                number
            }
        }
    }
}

/** Return true if a name may be part of a topic: 1 to 64 characters of `A-Z a-z 0-9 . _ -`. */
internal fun isName(text: String): Boolean =
    text.length in 1..64 && text.all { it in 'A'..'Z' || it in 'a'..'z' || it in '0'..'9' || it in "._-" }

/** Return true if a text is a SHA-256 in lower-case hexadecimal digits. */
internal fun isDigest(text: String): Boolean = text.length == 64 && text.all { it in '0'..'9' || it in 'a'..'f' }
