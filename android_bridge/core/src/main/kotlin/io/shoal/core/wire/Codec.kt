package io.shoal.core.wire

import io.shoal.core.InternalShoalApi
import io.shoal.core.LimitExceededException
import io.shoal.core.MalformedException
import io.shoal.core.Tensors
import java.security.MessageDigest

/** Maximum size of a JSON message (bytes), tested before it is parsed. */
internal const val MESSAGE_BYTES: Int = 64 * 1024

/** Maximum size of a signed plan (bytes): a device must be able to send it back as a proof. */
internal const val PLAN_BYTES: Int = 48 * 1024

/** Maximum of a sum of losses, and of a time in seconds: sums over devices must stay finite. */
private const val LARGEST_SUM = 1e12

/** Return the SHA-256 by which a blob is named, as 64 lower-case hexadecimal digits. */
internal fun digest(payload: ByteArray): String =
    hexOf(MessageDigest.getInstance("SHA-256").digest(payload))

/** Return bytes in lower-case hexadecimal digits. */
internal fun hexOf(bytes: ByteArray): String = bytes.joinToString("") { "%02x".format(it) }

/** Return a piece of an update: its message, a line feed, its bytes. */
internal fun encodePiece(message: Piece, payload: ByteArray): ByteArray = encode(message) + byteArrayOf('\n'.code.toByte()) + payload

/**
 * Return one message as JSON: fields in declared order, `type` first, no spaces; the bytes that the
 * Python side writes.
 */
internal fun encode(message: Message): ByteArray = jsonText(fieldsOf(message)).toByteArray()

/**
 * Parse one message of the class [T], or of any class if T is [Message].
 *
 * @throws LimitExceededException it has more than [MESSAGE_BYTES]
 * @throws MalformedException it is not JSON or of another type, or a field is missing or wrong; the text
 *   says which
 */
internal inline fun <reified T : Message> decode(payload: ByteArray): T {
    val message = decodeAny(payload)
    val expected = T::class.java.simpleName
    return message as? T ?: throw MalformedException("message of ${payload.size} bytes: its type is '${message.type}', expected $expected")
}

/**
 * Parse one message of any type.
 *
 * @throws LimitExceededException it has more than 64 KiB
 * @throws MalformedException it is not JSON or of an unknown type, or a field is missing or wrong; the text
 *   says which
 */
@InternalShoalApi
public fun decodeAny(payload: ByteArray): Message {
    if (payload.size > MESSAGE_BYTES) throw LimitExceededException("message of ${payload.size} bytes: at most $MESSAGE_BYTES are accepted")
    return messageOf(Fields(parseJson(payload), "message"))
}

/** Return an update and its tensors as one payload. */
internal fun encodeUpdate(message: Update, tensors: Tensors): ByteArray = encodeTensors(tensors, encode(message).decodeToString())

/**
 * Parse the output of [encodeUpdate].
 *
 * @throws LimitExceededException like [decodeTensors] and [decode]
 * @throws MalformedException like these, or if metrics are impossible
 */
internal fun decodeUpdate(payload: ByteArray, limits: Limits = Limits.PROTOCOL): Pair<Update, Tensors> {
    val (tensors, text) = decodeTensors(payload, limits)
    if (text.isEmpty()) throw MalformedException("update of ${payload.size} bytes: its tensor file has no message")
    val update = decode<Update>(text.toByteArray())
    checkSums(update)
    return Pair(update, tensors)
}

/**
 * Check that an update's metrics are possible, before it is sent and after it came.
 *
 * @throws MalformedException a metric is impossible
 */
internal fun checkSums(update: Update) {
    for (metrics in listOf(update.evaluated, update.trained)) {
        val possible = Math.abs(metrics.lossSum) <= LARGEST_SUM && metrics.numCorrect in 0..metrics.numExamples
        if (!possible) throw MalformedException("update: impossible metrics: $metrics")
    }
    if (!(update.trainS >= 0 && update.trainS <= LARGEST_SUM)) throw MalformedException("update: train_s must be between 0 and $LARGEST_SUM, got ${update.trainS}")
}
