package io.shoal.core.wire

import io.shoal.core.LimitExceeded
import io.shoal.core.Malformed
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

/** Return the offset of a piece. */
internal fun Pieces.offset(index: Int): Long = index * pieceBytes

/** Return the size of a piece. */
internal fun Pieces.size(index: Int): Int = minOf(pieceBytes, numBytes - offset(index)).toInt()

/**
 * Return the list of the pieces of a blob that is [read] piece by piece.
 *
 * @throws LimitExceeded the blob is too large for pieces
 */
internal fun cut(numBytes: Long, read: (Long, Int) -> ByteArray): Pieces {
    var size = PIECE_BYTES
    while (size.toLong() * MOST_PIECES < numBytes) size *= 2
    if (size > MOST_PIECE_BYTES) throw LimitExceeded("payload of $numBytes bytes: too large to be sent in pieces")
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
 * @throws LimitExceeded together they have more than [mostBytes]
 * @throws Malformed their number does not match their size
 */
internal fun checkPieces(pieces: Pieces, mostBytes: Int): Pieces {
    if (pieces.numBytes > mostBytes) throw LimitExceeded("payload of ${pieces.numBytes} bytes in pieces: at most $mostBytes are accepted")
    val expected = (pieces.numBytes + pieces.pieceBytes - 1) / pieces.pieceBytes
    if (pieces.pieces.size.toLong() != expected) throw Malformed("payload of ${pieces.numBytes} bytes: expected $expected pieces, got ${pieces.pieces.size}")
    return pieces
}
