"""Messages to bytes and back.

An update carries tensors beside its message; every other message is JSON alone.
"""

import hashlib
from typing import Any

import msgspec

from wire import messages
from wire.arrays.tensors import PROTOCOL_LIMITS, Limits, Tensors, decode_tensors, encode_tensors
from wire.errors import LimitExceeded, Malformed

MESSAGE_BYTES = 64 * 2**10
"""Maximum number of bytes of a JSON message, checked before it is parsed."""
PIECE_HEADER_BYTES = 2**10
"""Bound on the number of bytes of the message before a piece's bytes."""
LARGEST_SUM = 1e12
"""Largest sum of losses, or time in seconds, so that sums over devices stay finite."""

_encoder = msgspec.json.Encoder()


def digest(payload: bytes) -> str:
    """Return the SHA-256 by which a blob is named, as 64 lower-case hexadecimal digits."""
    return hashlib.sha256(payload).hexdigest()


def encode(message: msgspec.Struct) -> bytes:
    """Return a message as JSON: fields in declared order, ``type`` first, no spaces."""
    return _encoder.encode(message)


def decode(payload: bytes, kind: Any) -> Any:
    """Return the message of `kind`, which is a message class or a union of them.

    Raises:
        LimitExceeded: more than `MESSAGE_BYTES`.
        Malformed: not JSON, another type, or a field missing or wrong; the text names it.
    """
    if len(payload) > MESSAGE_BYTES:
        raise LimitExceeded(
            f"message of {len(payload)} bytes: at most {MESSAGE_BYTES} are accepted"
        )
    try:
        return msgspec.json.decode(payload, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Malformed(f"message of {len(payload)} bytes: not readable: {error}") from None


def decode_piece(payload: bytes) -> tuple[messages.Piece, bytes]:
    """Return a piece of an update from its message, a line feed and its bytes.

    Raises:
        Malformed: there is no line feed in the first `PIECE_HEADER_BYTES`, or the text before it is
            no such message.
    """
    end = payload.find(b"\n", 0, PIECE_HEADER_BYTES)
    if end < 0:
        raise Malformed(
            f"piece of {len(payload)} bytes: no line feed in the first {PIECE_HEADER_BYTES}, which "
            "would end its message"
        )
    return decode(payload[:end], messages.Piece), payload[end + 1 :]


def encode_update(message: messages.Update, tensors: Tensors) -> bytes:
    """Return an update and its tensors as one payload."""
    return encode_tensors(tensors, encode(message))


def decode_update(
    payload: bytes, limits: Limits = PROTOCOL_LIMITS
) -> tuple[messages.Update, Tensors]:
    """Return the update and the tensors of a payload from `encode_update`.

    Raises:
        LimitExceeded, Malformed: as `decode_tensors` and `decode`; impossible metrics are
            malformed too.
    """
    tensors, text = decode_tensors(payload, limits)
    if not text:
        raise Malformed(f"update of {len(payload)} bytes: its tensor file has no message")
    update: messages.Update = decode(text, messages.Update)
    for metrics in (update.evaluated, update.trained):
        if not abs(metrics.loss_sum) <= LARGEST_SUM or metrics.num_correct > metrics.num_examples:
            raise Malformed(f"update: impossible metrics: {metrics}")
    if not 0 <= update.train_s <= LARGEST_SUM:
        raise Malformed(
            f"update: train_s must be between 0 and {LARGEST_SUM:g}, got {update.train_s}"
        )
    return update, tensors
