"""Decoder of CBOR (RFC 8949) into the values of JSON: numbers, text, lists, maps, constants.

Sensors use little of CBOR, and devices should need few packages. This decodes all major types, half
floats and indefinite lengths included. Tags are skipped; bytes stay bytes. Lengths are compared
with the payload before memory is allocated.
"""

import struct
from typing import Any

from wire.errors import DataError

DEEPEST = 16
"""Maximum depth of nested lists and maps."""
_BREAK = object()
SIMPLE = {20: False, 21: True, 22: None, 23: None}
FLOATS = {25: ">e", 26: ">f", 27: ">d"}
"""Formats of floats by the additional information of major type 7; `SIMPLE` has its constants."""


def decode(payload: bytes) -> Any:
    """Return the single item that these bytes encode.

    Raises:
        DataError: the bytes are not one item of CBOR.
    """
    try:
        item, end = _item(payload, 0, 0)
    except (IndexError, struct.error, UnicodeDecodeError, TypeError) as error:
        raise DataError(
            f"CBOR of {len(payload)} bytes is damaged: {type(error).__name__}: {error}"
        ) from None
    if item is _BREAK or end != len(payload):
        raise DataError(
            f"CBOR of {len(payload)} bytes: "
            f"{'a break' if item is _BREAK else f'its first item ends at {end}'}"
        )
    return item


def _item(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    major, low = data[at] >> 5, data[at] & 31
    at += 1
    if low == 31:
        return _indefinite(data, at, major, depth)
    if low > 27:
        raise DataError(f"CBOR: additional information {low} has no meaning")
    size = 1 << low - 24 if low >= 24 else 0
    raw = data[at : at + size]
    if len(raw) < size:
        raise DataError(f"CBOR of {len(data)} bytes: it ends early")
    number = int.from_bytes(raw, "big") if size else low
    at += size
    if major == 7:
        if low in SIMPLE:
            return SIMPLE[low], at
        if low in FLOATS:
            return struct.unpack(FLOATS[low], raw)[0], at
        raise DataError(f"CBOR: simple value {number} has no meaning")
    if major >= 4 and depth >= DEEPEST:
        raise DataError(f"CBOR: more than {DEEPEST} lists and maps inside of each other")
    match major:
        case 0:
            return number, at
        case 1:
            return -1 - number, at
        case 2 | 3:
            if number > len(data) - at:
                raise DataError(f"CBOR of {len(data)} bytes: a text of {number} bytes is cut off")
            part = data[at : at + number]
            return (part.decode() if major == 3 else part), at + number
        case 4:
            return _list(data, at, number, depth)
        case 5:
            flat, at = _list(data, at, 2 * number, depth)
            return dict(zip(flat[::2], flat[1::2], strict=True)), at
    return _item(
        data, at, depth + 1
    )  # a tag is a hint, such as that the item is a time; the item alone says enough


def _list(data: bytes, at: int, count: int, depth: int) -> tuple[list[Any], int]:
    if count > len(data) - at:
        raise DataError(f"CBOR of {len(data)} bytes: a list of {count} items is cut off")
    items = []
    for _ in range(count):
        item, at = _item(data, at, depth + 1)
        if item is _BREAK:
            raise DataError("CBOR: a break inside a list of known length")
        items.append(item)
    return items, at


def _indefinite(data: bytes, at: int, major: int, depth: int) -> tuple[Any, int]:
    if major == 7:
        return _BREAK, at
    if major not in (2, 3, 4, 5) or depth >= DEEPEST:
        raise DataError(f"CBOR: major type {major} without a length")
    items: list[Any] = []
    while True:
        item, at = _item(data, at, depth + 1)
        if item is _BREAK:
            break
        items.append(item)
    if major == 4:
        return items, at
    if major == 5:
        if len(items) % 2:
            raise DataError("CBOR: a map with a key that has no value")
        return dict(zip(items[::2], items[1::2], strict=True)), at
    kind = str if major == 3 else bytes
    if not all(isinstance(item, kind) for item in items):
        raise DataError("CBOR: a text has a part that is not a text")
    return kind().join(items), at
