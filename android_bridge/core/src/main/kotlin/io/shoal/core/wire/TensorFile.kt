package io.shoal.core.wire

import io.shoal.core.DType
import io.shoal.core.InternalShoalApi
import io.shoal.core.LimitExceededException
import io.shoal.core.MalformedException
import io.shoal.core.Tensor
import io.shoal.core.Tensors
import io.shoal.core.WrongLayoutException
import java.nio.ByteBuffer
import java.nio.ByteOrder

/** Limits of one tensor file. The defaults are the protocol's upper bounds. */
@InternalShoalApi
public data class Limits(
    val totalBytes: Int = 64 * 1024 * 1024,
    val headerBytes: Int = 1024 * 1024,
    val numTensors: Int = 4096,
    val numDims: Int = 8,
) {
    public companion object {
        /** Limits of the protocol. */
        public val PROTOCOL: Limits = Limits()

        /** Limits for files whose size was compared with the device's limit when they came. */
        internal val RECEIVED = Limits(totalBytes = Int.MAX_VALUE)

        /**
         * Limits for files that this device wrote itself: nobody sent them, and they may be of any
         * size.
         */
        internal val OWN_FILES = Limits(Int.MAX_VALUE, Int.MAX_VALUE, Int.MAX_VALUE, 64)
    }
}

/** Tensors in the order of their names, and the message beside them, or an empty one. */
@InternalShoalApi
public data class TensorFile(val tensors: Tensors, val message: String)

private const val MESSAGE_KEY = "shoal"
private const val METADATA = "__metadata__"

/**
 * Return tensors, and a message of JSON text beside them, in the bytes that safetensors writes:
 * widest type first, then by name.
 */
@InternalShoalApi
public fun encodeTensors(tensors: Tensors, message: String = ""): ByteArray {
    val widestFirst = compareByDescending<Map.Entry<String, Tensor>> { it.value.dtype }
    val sorted = tensors.entries.sortedWith(widestFirst.then { a, b -> compareUtf8(a.key, b.key) })
    val header = StringBuilder("{")
    if (message.isNotEmpty()) header.append(""""$METADATA":""").append(jsonText(mapOf(MESSAGE_KEY to message)))
    var end = 0
    for ((name, tensor) in sorted) {
        val start = end
        end = Math.addExact(end, tensor.data.limit())
        if (header.length > 1) header.append(',')
        header.appendJsonString(name)
        header.append(""":{"dtype":"${tensor.dtype.fileName}","shape":[${tensor.shape.joinToString(",")}],"data_offsets":[$start,$end]}""")
    }
    val text = header.append('}').toString().toByteArray()
    val length = (text.size + 7) / 8 * 8
    val file = ByteBuffer.allocate(Math.addExact(8 + length, end)).order(ByteOrder.LITTLE_ENDIAN)
    file.putLong(length.toLong()).put(text)
    repeat(length - text.size) { file.put(' '.code.toByte()) }
    for ((_, tensor) in sorted) file.put(tensor.data.duplicate())
    return file.array()
}

/**
 * Parse the output of [encodeTensors]. The whole header is checked before memory for a tensor is
 * taken.
 *
 * @throws LimitExceededException it is larger, or has more or longer tensors, than [limits] allow
 * @throws MalformedException it is not a safetensors file, or has a type that the protocol does not have
 */
@InternalShoalApi
public fun decodeTensors(payload: ByteArray, limits: Limits = Limits.PROTOCOL): TensorFile {
    if (payload.size > limits.totalBytes) {
        throw LimitExceededException("tensor file of ${payload.size} bytes: at most ${limits.totalBytes} are accepted")
    }
    if (payload.size < 8) throw MalformedException("tensor file of ${payload.size} bytes: expected at least the 8 bytes of the header's length")
    val length = ByteBuffer.wrap(payload).order(ByteOrder.LITTLE_ENDIAN).getLong(0)
    if (length < 0 || length > limits.headerBytes) {
        throw LimitExceededException("tensor file with a header of ${length.toULong()} bytes: at most ${limits.headerBytes} are accepted")
    }
    if (length > payload.size - 8) throw MalformedException("tensor file of ${payload.size} bytes: cut off; its header alone has $length bytes")
    if (length == 0L || payload[8] != '{'.code.toByte()) throw MalformedException("tensor file: its header is not a JSON object")
    val header = parseJson(payload, 8, length.toInt()) as JsonObject
    val message = messageIn(header.fields[METADATA])
    val entries = header.fields - METADATA
    if (entries.size > limits.numTensors) {
        throw LimitExceededException("tensor file with ${entries.size} tensors: at most ${limits.numTensors} are accepted")
    }
    val data = 8 + length.toInt()
    val places = entries.map { (name, entry) -> placeOf(name, entry, payload.size - data, limits) }
    checkGapless(places, payload.size - data)
    return TensorFile(places.sortedBy { it.name }.associate { it.name to it.read(payload, data) }, message)
}

/**
 * Check that names, types and shapes are those [expected].
 *
 * @throws WrongLayoutException there is a difference; the text has the first one, and [origin]
 */
internal fun checkLayout(tensors: Tensors, expected: List<TensorLayout>, origin: String) {
    val wanted = expected.associateBy { it.name }
    for (name in (wanted.keys + tensors.keys).sorted()) {
        val got = tensors[name] ?: throw WrongLayoutException("$origin: tensor '$name' is missing")
        val layout = wanted[name] ?: throw WrongLayoutException("$origin: tensor '${name.take(80)}' was not expected")
        if (got.dtype != layout.dtype || got.shape != layout.shape) {
            throw WrongLayoutException("$origin: tensor '$name' is $got, expected ${layout.dtype}${layout.shape}")
        }
    }
}

/** Position of a tensor's bytes, counted from the end of the header. */
private class Place(val name: String, val dtype: DType, val shape: List<Int>, val start: Int, val end: Int) {
    fun read(payload: ByteArray, data: Int): Tensor {
        val tensor = Tensor.allocate(dtype, shape)
        tensor.data.duplicate().put(payload, data + start, end - start)
        return tensor
    }
}

private fun messageIn(metadata: Json?): String {
    if (metadata == null || metadata === JsonNull) return ""
    val values = (metadata as? JsonObject)?.fields?.mapValues { (_, value) -> (value as? JsonString)?.value }
    if (values == null || null in values.values) throw MalformedException("tensor file: its metadata is not an object of strings")
    return values[MESSAGE_KEY].orEmpty()
}

private fun placeOf(name: String, entry: Json, dataBytes: Int, limits: Limits): Place {
    val what = "tensor '${name.take(80)}'"
    val f = Fields(entry, what)
    val dtype = f.oneOf("dtype", DType.entries.map { it.fileName }).let { name -> DType.entries.first { it.fileName == name } }
    val shape = f.sizes("shape")
    val offsets = f.sizes("data_offsets")
    if (shape.size > limits.numDims) throw LimitExceededException("$what has ${shape.size} dimensions: at most ${limits.numDims} are accepted")
    val bytes = Tensor.numBytes(dtype, shape)
    if (bytes > dataBytes) throw MalformedException("$what of shape $shape: the file has only $dataBytes bytes of data")
    if (offsets.size != 2 || offsets[1].toLong() - offsets[0] != bytes) {
        throw MalformedException("$what of shape $shape: data_offsets must be two numbers, $bytes apart, got $offsets")
    }
    return Place(name, dtype, shape, offsets[0], offsets[1])
}

private fun checkGapless(places: List<Place>, dataBytes: Int) {
    var end = 0
    for (place in places.sortedWith(compareBy({ it.start }, { it.end }))) {
        if (place.start != end) throw MalformedException("tensor '${place.name.take(80)}': its data begin at ${place.start}, expected $end")
        end = place.end
    }
    if (end != dataBytes) throw MalformedException("tensor file: $dataBytes bytes of data, of which its tensors use $end")
}

/**
 * Compare the UTF-8 bytes of two texts. That is the order of their code points; the order of
 * `String` differs beyond U+FFFF.
 */
internal fun compareUtf8(one: String, other: String): Int {
    val (a, b) = Pair(one.toByteArray(), other.toByteArray())
    for (i in 0 until minOf(a.size, b.size)) {
        if (a[i] != b[i]) return (a[i].toInt() and 0xff) - (b[i].toInt() and 0xff)
    }
    return a.size - b.size
}
