"""What is large travels in pieces, each named by its SHA-256 (SPEC.md, 'Pieces')."""

import hashlib
from collections.abc import Callable

from wire.errors import LimitExceeded, Malformed
from wire.messages import MOST_PIECES, Pieces

WHOLE_BYTES = 2**20
"""What has no more bytes travels whole."""
PIECE_BYTES = 256 * 2**10
"""A piece has so many bytes, or twice as many, and so on, if there would be too many pieces: a cut
costs `WINDOW` pieces, and over 1 Mbit/s one takes two seconds."""
WINDOW = 4
"""So many pieces are under way to a device, or from it, at a time."""
MOST_BYTES = 64 * 2**20
"""The largest payload of a fleet that does not ask for larger ones."""

Read = Callable[[int, int], bytes]
"""The bytes from an offset on, so many."""


def cut(num_bytes: int, read: Read) -> Pieces:
    """The pieces of something that is read piece by piece.

    Raises:
        LimitExceeded: it is too large for any piece.
    """
    size = PIECE_BYTES
    while size * MOST_PIECES < num_bytes:
        size *= 2
    if size > 2**22:
        raise LimitExceeded(
            f"{num_bytes} bytes: at most {2**22 * MOST_PIECES} can be cut into pieces"
        )
    whole, digests = hashlib.sha256(), []
    for offset in range(0, num_bytes, size):
        piece = read(offset, min(size, num_bytes - offset))
        whole.update(piece)
        digests.append(hashlib.sha256(piece).hexdigest())
    return Pieces(whole.hexdigest(), num_bytes, size, tuple(digests))


def place(pieces: Pieces, index: int) -> tuple[int, int]:
    """Where a piece begins, and how many bytes it has."""
    offset = index * pieces.piece_bytes
    return offset, min(pieces.piece_bytes, pieces.num_bytes - offset)


def check_pieces(pieces: Pieces, most_bytes: int) -> Pieces:
    """Return these pieces if they can be.

    Raises:
        LimitExceeded: together they have more than `most_bytes`.
        Malformed: there are not as many as that makes.
    """
    if pieces.num_bytes > most_bytes:
        raise LimitExceeded(
            f"{pieces.num_bytes} bytes in pieces: at most {most_bytes} are accepted"
        )
    expected = -(-pieces.num_bytes // pieces.piece_bytes)
    if len(pieces.pieces) != expected:
        raise Malformed(
            f"{len(pieces.pieces)} pieces of {pieces.piece_bytes} bytes: {pieces.num_bytes} bytes "
            f"make {expected}"
        )
    return pieces
