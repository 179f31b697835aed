"""Cutting of large payloads into pieces, each named by its SHA-256 (SPEC.md, 'Pieces')."""

import hashlib
from collections.abc import Callable
from typing import NamedTuple

from wire.errors import LimitExceeded, Malformed
from wire.messages import MOST_PIECES, Pieces

WHOLE_BYTES = 2**20
"""Maximum number of bytes of a payload that travels whole."""
PIECE_BYTES = 256 * 2**10
"""Number of bytes of a piece, doubled until the number of pieces is allowed.

A lost connection costs `WINDOW` pieces. A piece takes two seconds over 1 Mbit/s.
"""
WINDOW = 4
"""Maximum number of pieces in transit to or from a device."""
MOST_BYTES = 64 * 2**20
"""Default limit of a fleet's payloads, in bytes."""

LIST_BYTES = 68
"""Number of bytes of a piece in the list of pieces: its SHA-256 as JSON."""
BESIDE_BYTES = 2**10
"""Bytes of a packet that are left for its topic, and for the message before a piece."""

Read = Callable[[int, int], bytes]
"""Function that returns the bytes of an offset and a length."""


class PacketLimit(NamedTuple):
    """Size of the largest packet that a broker takes, and a clause that says who limits it."""

    num_bytes: int
    origin: str

    @property
    def payload_bytes(self) -> int:
        """Number of bytes of the largest piece, or of the largest payload that travels whole."""
        return self.num_bytes - BESIDE_BYTES


UNLIMITED = PacketLimit(2**28 - 1, "MQTT has packets of at most 268435455 bytes")
"""Limit of MQTT itself."""


def cut(num_bytes: int, read: Read, limit: PacketLimit = UNLIMITED) -> Pieces:
    """Return the pieces of a payload that is read piece by piece.

    Raises:
        LimitExceeded: its pieces, or the list of them, would be larger than `limit`.
    """
    size = PIECE_BYTES
    while size * MOST_PIECES < num_bytes:
        size *= 2
    size = min(size, limit.payload_bytes, 2**22)
    most = size * min(MOST_PIECES, (limit.payload_bytes - BESIDE_BYTES) // LIST_BYTES)
    if num_bytes > most:
        raise LimitExceeded(
            f"{limit.origin}, so at most {most} bytes can be sent in pieces, and a payload has "
            f"{num_bytes}"
        )
    whole, digests = hashlib.sha256(), []
    for offset in range(0, num_bytes, size):
        piece = read(offset, min(size, num_bytes - offset))
        whole.update(piece)
        digests.append(hashlib.sha256(piece).hexdigest())
    return Pieces(whole.hexdigest(), num_bytes, size, tuple(digests))


def place(pieces: Pieces, index: int) -> tuple[int, int]:
    """Return the offset and the number of bytes of a piece."""
    offset = index * pieces.piece_bytes
    return offset, min(pieces.piece_bytes, pieces.num_bytes - offset)


def check_pieces(pieces: Pieces, most_bytes: int) -> Pieces:
    """Return these pieces if they are consistent.

    Raises:
        LimitExceeded: together they have more than `most_bytes`.
        Malformed: their number does not match their size.
    """
    if pieces.num_bytes > most_bytes:
        raise LimitExceeded(
            f"payload of {pieces.num_bytes} bytes in pieces: at most {most_bytes} are accepted"
        )
    expected = -(-pieces.num_bytes // pieces.piece_bytes)
    if len(pieces.pieces) != expected:
        raise Malformed(
            f"payload of {pieces.num_bytes} bytes in pieces of {pieces.piece_bytes}: expected "
            f"{expected} pieces, got {len(pieces.pieces)}"
        )
    return pieces
