package io.shoal.core.wire

import io.shoal.core.LimitExceeded
import io.shoal.core.Malformed
import java.security.MessageDigest

/** What has no more bytes travels whole. */
internal const val WHOLE_BYTES = 1 shl 20

/** A piece has so many bytes, or twice as many, and so on, if there would be too many pieces. */
internal const val PIECE_BYTES = 256 * 1024

/** So many pieces are under way to a device, or from it, at a time. */
internal const val WINDOW = 4

/** Something large is cut into so many pieces at most. */
internal const val MOST_PIECES = 512

private const val MOST_PIECE_BYTES = 1 shl 22

/** Where a piece begins. */
internal fun Pieces.offset(index: Int): Long = index * pieceBytes

/** How many bytes a piece has. */
internal fun Pieces.size(index: Int): Int = minOf(pieceBytes, numBytes - offset(index)).toInt()

/**
 * The pieces of something that is [read] piece by piece.
 *
 * @throws LimitExceeded it is too large for any piece
 */
internal fun cut(numBytes: Long, read: (Long, Int) -> ByteArray): Pieces {
    var size = PIECE_BYTES
    while (size.toLong() * MOST_PIECES < numBytes) size *= 2
    if (size > MOST_PIECE_BYTES) throw LimitExceeded("$numBytes bytes are too many to be cut into pieces")
    val whole = MessageDigest.getInstance("SHA-256")
    val digests = (0 until numBytes step size.toLong()).map { offset ->
        val piece = read(offset, minOf(size.toLong(), numBytes - offset).toInt())
        whole.update(piece)
        digest(piece)
    }
    return Pieces(hexOf(whole.digest()), numBytes, size.toLong(), digests)
}

/**
 * These pieces, if they can be.
 *
 * @throws LimitExceeded together they have more than [mostBytes]
 * @throws Malformed there are not as many as that makes
 */
internal fun checkPieces(pieces: Pieces, mostBytes: Int): Pieces {
    if (pieces.numBytes > mostBytes) throw LimitExceeded("${pieces.numBytes} bytes in pieces: at most $mostBytes are accepted")
    val expected = (pieces.numBytes + pieces.pieceBytes - 1) / pieces.pieceBytes
    if (pieces.pieces.size.toLong() != expected) throw Malformed("${pieces.pieces.size} pieces: ${pieces.numBytes} bytes make $expected")
    return pieces
}
