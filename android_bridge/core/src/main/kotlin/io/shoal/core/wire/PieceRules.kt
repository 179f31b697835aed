package io.shoal.core.wire

import io.shoal.core.LimitExceededException
import io.shoal.core.MalformedException
import java.security.MessageDigest

/** Size of the largest blob that is sent whole. */
internal const val WHOLE_BYTES = 1 shl 20

/** Size of a piece, doubled until there are not too many pieces. */
internal const val PIECE_BYTES = 256 * 1024

/** Number of pieces that are under way to a device, or from it, at a time. */
internal const val WINDOW = 4

/** Maximum number of pieces of a blob. */
internal const val MOST_PIECES = 512

private const val MOST_PIECE_BYTES = 1 shl 22

/** Size of a piece in the list of pieces. */
private const val LIST_BYTES = 68

/** Bytes of a packet that are left for its topic, and for the message before a piece. */
private const val BESIDE_BYTES = 1024

/** Size of the largest packet that a broker takes, and a clause that says who limits it. */
internal class PacketLimit(val bytes: Int, val origin: String) {
    /** Size of the largest piece, or of the largest payload that travels whole. */
    val payloadBytes: Int get() = bytes - BESIDE_BYTES

    companion object {
        /** Limit of MQTT itself. */
        val MQTT: PacketLimit = PacketLimit(268_435_455, "MQTT has packets of at most 268435455 bytes")
    }
}

/** Return the offset of a piece. */
internal fun Pieces.offset(index: Int): Long = index * pieceBytes

/** Return the size of a piece. */
internal fun Pieces.size(index: Int): Int = minOf(pieceBytes, numBytes - offset(index)).toInt()

/**
 * Return the list of the pieces of a blob that is [read] piece by piece.
 *
 * @throws LimitExceededException its pieces, or the list of them, would be larger than [limit]
 */
internal fun cut(numBytes: Long, limit: PacketLimit = PacketLimit.MQTT, read: (Long, Int) -> ByteArray): Pieces {
    var wanted = PIECE_BYTES.toLong()
    while (wanted * MOST_PIECES < numBytes) wanted *= 2
    val size = minOf(wanted, limit.payloadBytes.toLong(), MOST_PIECE_BYTES.toLong()).toInt()
    val most = size.toLong() * minOf(MOST_PIECES, (limit.payloadBytes - BESIDE_BYTES) / LIST_BYTES)
    if (numBytes > most) throw LimitExceededException("${limit.origin}, so at most $most bytes can be sent in pieces, and a payload has $numBytes")
    val whole = MessageDigest.getInstance("SHA-256")
    val digests = (0 until numBytes step size.toLong()).map { offset ->
        val piece = read(offset, minOf(size.toLong(), numBytes - offset).toInt())
        whole.update(piece)
        digest(piece)
    }
    return Pieces(hexOf(whole.digest()), numBytes, size.toLong(), digests)
}

/**
 * Check a list of pieces and return it.
 *
 * @throws LimitExceededException together they have more than [mostBytes]
 * @throws MalformedException their number does not match their size
 */
internal fun checkPieces(pieces: Pieces, mostBytes: Int): Pieces {
    if (pieces.numBytes > mostBytes) throw LimitExceededException("payload of ${pieces.numBytes} bytes in pieces: at most $mostBytes are accepted")
    val expected = (pieces.numBytes + pieces.pieceBytes - 1) / pieces.pieceBytes
    if (pieces.pieces.size.toLong() != expected) throw MalformedException("payload of ${pieces.numBytes} bytes: expected $expected pieces, got ${pieces.pieces.size}")
    return pieces
}
