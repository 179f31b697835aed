"""Named arrays to bytes and back: the safetensors format with limits (SPEC.md, 'Tensors').

A hostile header can promise terabytes, so every entry is checked against the file's size before an
array is allocated. One metadata key, ``shoal``, carries a message beside the arrays.
"""

import struct
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, Literal, NamedTuple, TypeGuard

import msgspec
import numpy as np

from wire.arrays.names import Role, key_of
from wire.errors import LimitExceeded, Malformed, WrongLayout

Array = np.ndarray[Any, np.dtype[Any]]
Tensors = dict[str, Array]
Dtype = Literal["float32", "int64", "int32", "uint8", "bool"]

METADATA_KEY = "shoal"
_METADATA = "__metadata__"
_DTYPES: dict[str, np.dtype[Any]] = {
    "I64": np.dtype("int64"),
    "F32": np.dtype("float32"),
    "I32": np.dtype("int32"),
    "I8": np.dtype("int8"),
    "U8": np.dtype("uint8"),
    "BOOL": np.dtype("bool"),
}
"""Dtypes in the order in which safetensors writes them."""
_NAMES = {dtype: dtype.name for dtype in _DTYPES.values()}
"""Names of dtypes, cached because `str(dtype)` takes microseconds."""
_WRITTEN = {dtype: (place, written) for place, (written, dtype) in enumerate(_DTYPES.items())}


class TensorSpec(msgspec.Struct, frozen=True):
    """One tensor of a bundle: its name without the role, its role, dtype and shape."""

    name: str
    role: Role
    dtype: Dtype
    shape: tuple[int, ...]

    @property
    def key(self) -> str:
        """Name in graphs and tensor files: ``ROLE/NAME``."""
        return key_of(self.role, self.name)

    @property
    def num_bytes(self) -> int:
        """Size of the data in bytes."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


class Limits(NamedTuple):
    """Limits of a tensor file.

    The defaults are the protocol's upper bounds; an aggregator lowers them to its bundle.
    """

    total_bytes: int = 64 * 2**20
    header_bytes: int = 2**20
    num_tensors: int = 4096
    num_dims: int = 8


PROTOCOL_LIMITS = Limits()
RECEIVED_FILES = Limits(total_bytes=2**62)
"""Limits for files whose size was checked against the fleet's limit on arrival."""
OWN_FILES = Limits(total_bytes=2**62, header_bytes=2**40, num_tensors=2**40, num_dims=64)
"""Limits for files that this program wrote itself, which may have any size."""


def encode_tensors(tensors: Mapping[str, Array], message: bytes = b"") -> bytes:
    """Return the bytes of arrays (C-contiguous, little-endian) and of a JSON message beside them.

    The bytes are those of the safetensors library: the widest dtypes first, then by name.

    Raises:
        ValueError: the protocol does not have the dtype of an array.
    """
    if other := [name for name, array in tensors.items() if array.dtype not in _WRITTEN]:
        raise ValueError(
            f"tensor {other[0]!r} is {tensors[other[0]].dtype}, expected one of "
            f"{', '.join(_NAMES.values())}"
        )
    header: dict[str, Any] = {_METADATA: {METADATA_KEY: message.decode()}} if message else {}
    parts, end = [], 0
    for name in sorted(tensors, key=lambda name: (_WRITTEN[tensors[name].dtype][0], name.encode())):
        array = tensors[name]
        start, end = end, end + array.nbytes
        header[name] = {
            "dtype": _WRITTEN[array.dtype][1],
            "shape": array.shape,
            "data_offsets": (start, end),
        }
        parts.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, *parts])


def decode_tensors(payload: bytes, limits: Limits = PROTOCOL_LIMITS) -> tuple[Tensors, bytes]:
    """Return the arrays of a tensor file, in the order of their names, and its message.

    Raises:
        LimitExceeded: the file, its header, or the number or rank of its tensors is over `limits`.
        Malformed: it is not a safetensors file, or the protocol does not have a dtype.
    """
    header, data = _header(payload, limits)
    metadata = header.pop(_METADATA, None) or {}
    if not isinstance(metadata, dict) or not all(
        isinstance(value, str) for value in metadata.values()
    ):
        raise Malformed("tensor file: its metadata is not an object of strings")
    if len(header) > limits.num_tensors:
        raise LimitExceeded(
            f"tensor file with {len(header)} tensors: at most {limits.num_tensors} are accepted"
        )
    places = {name: _place(name, e, len(payload) - data, limits) for name, e in header.items()}
    end = 0
    for name, (_, _, start, stop) in sorted(places.items(), key=lambda place: place[1][2:]):
        if start != end:
            raise Malformed(f"tensor {name[:80]!r}: its data begin at {start}, expected {end}")
        end = stop
    if end != len(payload) - data:
        raise Malformed(
            f"tensor file: {len(payload) - data} bytes of data, of which its tensors use {end}"
        )
    tensors = {
        name: np.ndarray(shape, dtype, payload, data + start).copy()
        for name, (dtype, shape, start, _) in sorted(places.items())
    }
    return tensors, metadata.get(METADATA_KEY, "").encode()


def _header(payload: bytes, limits: Limits) -> tuple[dict[str, Any], int]:
    """Return the JSON object at the beginning of the file, and the position of its end."""
    if len(payload) > limits.total_bytes:
        raise LimitExceeded(
            f"tensor file of {len(payload)} bytes: at most {limits.total_bytes} are accepted"
        )
    if len(payload) < 8:
        raise Malformed(
            f"tensor file of {len(payload)} bytes: expected at least the 8 bytes of the header's "
            "length"
        )
    (length,) = struct.unpack_from("<Q", payload)
    if length > limits.header_bytes:
        raise LimitExceeded(
            f"tensor file with a header of {length} bytes: at most {limits.header_bytes} are "
            "accepted"
        )
    if length > len(payload) - 8:
        raise Malformed(
            f"tensor file of {len(payload)} bytes: cut off; its header alone has {length} bytes"
        )
    try:
        header = msgspec.json.decode(payload[8 : 8 + length])
    except (ValueError, RecursionError) as error:
        raise Malformed(f"tensor file: its header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise Malformed(
            f"tensor file: its header is a JSON {type(header).__name__}, expected an object"
        )
    return header, 8 + length


def _place(
    name: str, entry: object, data_bytes: int, limits: Limits
) -> tuple[np.dtype[Any], list[int], int, int]:
    """Return dtype, shape and position (begin and end behind the header) of a tensor.

    They come from the tensor's entry in the header, which is checked.
    """
    what = f"tensor {name[:80]!r}"
    got = entry.get("dtype") if isinstance(entry, dict) else entry
    if not isinstance(entry, dict) or not isinstance(got, str) or got not in _DTYPES:
        raise Malformed(f"{what}: dtype {str(got)[:40]!r}, expected one of {', '.join(_DTYPES)}")
    shape, offsets, dtype = entry.get("shape"), entry.get("data_offsets"), _DTYPES[got]
    if not _are_sizes(shape):
        raise Malformed(f"{what}: shape {str(shape)[:40]}, expected a list of sizes")
    if len(shape) > limits.num_dims:
        raise LimitExceeded(
            f"{what} has {len(shape)} dimensions: at most {limits.num_dims} are accepted"
        )
    size = prod(shape) * dtype.itemsize
    # numpy has no shape whose nonzero sizes exceed this in bytes, even if the array is empty
    is_absurd = not size and prod(n or 1 for n in shape) * dtype.itemsize >= 2**63
    if size > data_bytes or is_absurd:
        raise Malformed(f"{what} of shape {shape}: the file has only {data_bytes} bytes of data")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[1] - offsets[0] != size:
        raise Malformed(
            f"{what} of shape {shape}: data_offsets must be two numbers, {size} apart, got "
            f"{str(offsets)[:40]}"
        )
    return dtype, shape, offsets[0], offsets[1]


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    if not isinstance(value, list):
        return False
    for n in value:  # noqa: SIM110 - `all` takes three times as long for a few numbers
        if type(n) is not int or n < 0:
            return False
    return True


def check_layout(
    tensors: Mapping[str, Array], expected: Iterable[tuple[str, str, tuple[int, ...]]], origin: str
) -> None:
    """Raise WrongLayout if names, dtypes or shapes differ from `expected`.

    `expected`: (name, dtype, shape) of each tensor.

    Raises:
        WrongLayout: the first difference, with the actual and the expected value, and `origin`.
    """
    wanted = {name: (dtype, tuple(shape)) for name, dtype, shape in expected}
    for name in sorted(wanted.keys() | tensors.keys()):
        if name not in tensors:
            raise WrongLayout(f"{origin}: tensor {name!r} is missing")
        if name not in wanted:
            raise WrongLayout(f"{origin}: tensor {name[:80]!r} was not expected")
        got = (_NAMES.get(tensors[name].dtype) or str(tensors[name].dtype), tensors[name].shape)
        if got != wanted[name]:
            raise WrongLayout(
                f"{origin}: tensor {name!r} is {got[0]}{list(got[1])}, expected "
                f"{wanted[name][0]}{list(wanted[name][1])}"
            )
