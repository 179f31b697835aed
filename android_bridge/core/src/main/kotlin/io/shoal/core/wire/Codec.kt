package io.shoal.core.wire

import io.shoal.core.InternalShoalApi
import io.shoal.core.LimitExceeded
import io.shoal.core.Malformed
import io.shoal.core.Tensors
import java.security.MessageDigest

/** A JSON message may have at most this many bytes; read before it is parsed. */
internal const val MESSAGE_BYTES: Int = 64 * 1024

/** A signed plan may have at most this many bytes: a device has to be able to send it back as a proof. */
internal const val PLAN_BYTES: Int = 16 * 1024

/** A sum of losses, or a time in seconds, beyond this is refused: sums over devices must stay finite. */
private const val LARGEST_SUM = 1e12

/** The SHA-256 by which a blob is named, as 64 lower-case hexadecimal digits. */
internal fun digest(payload: ByteArray): String =
    hexOf(MessageDigest.getInstance("SHA-256").digest(payload))

/** Bytes in lower-case hexadecimal digits. */
internal fun hexOf(bytes: ByteArray): String = bytes.joinToString("") { "%02x".format(it) }

/** A piece of an update: its message, a line feed, its bytes. */
internal fun encodePiece(message: Piece, payload: ByteArray): ByteArray = encode(message) + byteArrayOf('\n'.code.toByte()) + payload

/** One message as JSON: fields in declared order, `type` first, no spaces; the bytes that the Python side writes. */
internal fun encode(message: Message): ByteArray = jsonText(fieldsOf(message)).toByteArray()

/**
 * Reads one message of the class [T], or of any where T is [Message].
 *
 * @throws LimitExceeded more than [MESSAGE_BYTES]
 * @throws Malformed not JSON, another type, or a field missing or wrong; the text says which
 */
internal inline fun <reified T : Message> decode(payload: ByteArray): T {
    val message = decodeAny(payload)
    val expected = T::class.java.simpleName
    return message as? T ?: throw Malformed("message of ${payload.size} bytes: its type is '${message.type}', expected $expected")
}

/**
 * Reads one message of any type.
 *
 * @throws LimitExceeded more than 64 KiB
 * @throws Malformed not JSON, another type, or a field missing or wrong; the text says which
 */
@InternalShoalApi
public fun decodeAny(payload: ByteArray): Message {
    if (payload.size > MESSAGE_BYTES) throw LimitExceeded("message of ${payload.size} bytes: at most $MESSAGE_BYTES are accepted")
    return messageOf(Fields(parseJson(payload), "message"))
}

/** An update and its tensors as one payload. */
internal fun encodeUpdate(message: Update, tensors: Tensors): ByteArray = encodeTensors(tensors, encode(message).decodeToString())

/**
 * Reads what [encodeUpdate] wrote.
 *
 * @throws LimitExceeded as [decodeTensors] and [decode]
 * @throws Malformed likewise; metrics that cannot be are malformed too
 */
internal fun decodeUpdate(payload: ByteArray, limits: Limits = Limits.PROTOCOL): Pair<Update, Tensors> {
    val (tensors, text) = decodeTensors(payload, limits)
    if (text.isEmpty()) throw Malformed("tensor file of ${payload.size} bytes: it carries no message")
    val update = decode<Update>(text.toByteArray())
    checkSums(update)
    return Pair(update, tensors)
}

/**
 * Refuses an update whose metrics cannot be, so that one is neither sent nor taken.
 *
 * @throws Malformed the first of them
 */
internal fun checkSums(update: Update) {
    for (metrics in listOf(update.evaluated, update.trained)) {
        val possible = Math.abs(metrics.lossSum) <= LARGEST_SUM && metrics.numCorrect in 0..metrics.numExamples
        if (!possible) throw Malformed("update: metrics that cannot be: $metrics")
    }
    if (!(update.trainS >= 0 && update.trainS <= LARGEST_SUM)) throw Malformed("update: train_s ${update.trainS}")
}
