"""Named arrays to bytes and back: safetensors, with limits that are checked before memory is taken (SPEC.md, 'Tensors').

The safetensors library does the packing; what is added here is a bounded reading of the header first, because a hostile
header can promise terabytes, and one metadata key, ``shoal``, that carries a message beside the arrays.
"""

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as _load
from safetensors.numpy import save as _save

from wire.errors import LimitExceeded, Malformed, WrongLayout
from wire.names import Role, key_of

Array = np.ndarray[Any, np.dtype[Any]]
Tensors = dict[str, Array]
Dtype = Literal["float32", "int64", "int32", "uint8", "bool"]

METADATA_KEY = "shoal"
_DTYPES = {"F32": "float32", "I64": "int64", "I32": "int32", "U8": "uint8", "I8": "int8", "BOOL": "bool"}
_NAMES = {np.dtype(name): name for name in _DTYPES.values()}
"""`str(dtype)` takes microseconds."""


class TensorSpec(msgspec.Struct, frozen=True):
    """One tensor of a bundle: its name without the role, its role, dtype and shape."""

    name: str
    role: Role
    dtype: Dtype
    shape: tuple[int, ...]

    @property
    def key(self) -> str:
        """The name it has in graphs and tensor files: ``ROLE/NAME``."""
        return key_of(self.role, self.name)

    @property
    def num_bytes(self) -> int:
        """The size of its data in bytes."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Limits:
    """What one tensor file may hold. The defaults are the protocol's upper bounds; an aggregator lowers them to its bundle."""

    total_bytes: int = 64 * 2**20
    header_bytes: int = 2**20
    num_tensors: int = 4096
    num_dims: int = 8

    @classmethod
    def for_layout(cls, specs: Sequence[TensorSpec], extra_bytes: int, extra_tensors: int = 256) -> "Limits":
        """The limits that just admit tensors of this layout, and beside them a message and `extra_bytes` of other tensors."""
        tensors = len(specs) + extra_tensors
        header = 256 * tensors + 64 * 2**10
        return cls(8 + header + sum(spec.num_bytes for spec in specs) + extra_bytes, header, tensors)

    def or_more(self, other: "Limits") -> "Limits":
        """The limits that admit what either admits."""
        return Limits(
            max(self.total_bytes, other.total_bytes),
            max(self.header_bytes, other.header_bytes),
            max(self.num_tensors, other.num_tensors),
            max(self.num_dims, other.num_dims),
        )


PROTOCOL_LIMITS = Limits()
RECEIVED_FILES = Limits(total_bytes=2**62)
"""For files whose size was held against the fleet's limit when they came."""
OWN_FILES = Limits(total_bytes=2**62, header_bytes=2**40, num_tensors=2**40, num_dims=64)
"""For files that this program wrote itself: they were not sent by anybody and may be of any size."""


def encode_tensors(tensors: Mapping[str, Array], message: bytes = b"") -> bytes:
    """Pack arrays, C-contiguous and little-endian, and a message of JSON text beside them."""
    arrays = {name: np.ascontiguousarray(array) if array.ndim else array.reshape(()) for name, array in tensors.items()}
    return bytes(_save(arrays, {METADATA_KEY: message.decode()} if message else None))


def decode_tensors(payload: bytes, limits: Limits = PROTOCOL_LIMITS) -> tuple[Tensors, bytes]:
    """Unpack what `encode_tensors` packed, into (arrays in the order of their names, message).

    Raises:
        LimitExceeded: larger, or with more or longer tensors, than `limits` allow.
        Malformed: not a safetensors file, or a dtype the protocol does not have.
    """
    message = _check_header(payload, limits)
    try:
        return dict(sorted(_load(payload).items())), message
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise Malformed(f"tensor file of {len(payload)} bytes: {error}") from None


def _check_header(payload: bytes, limits: Limits) -> bytes:
    if len(payload) > limits.total_bytes:
        raise LimitExceeded(f"tensor file of {len(payload)} bytes: at most {limits.total_bytes} are accepted")
    if len(payload) < 8:
        raise Malformed(f"tensor file of {len(payload)} bytes: expected at least the 8 bytes of the header's length")
    (length,) = struct.unpack_from("<Q", payload)
    if length > limits.header_bytes:
        raise LimitExceeded(f"tensor file with a header of {length} bytes: at most {limits.header_bytes} are accepted")
    try:
        header = json.loads(payload[8 : 8 + length].decode())
    except (ValueError, RecursionError) as error:
        raise Malformed(f"tensor file: its header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise Malformed(f"tensor file: its header is a JSON {type(header).__name__}, expected an object")
    metadata = header.pop("__metadata__", {})
    message = metadata.get(METADATA_KEY, "") if isinstance(metadata, dict) else None
    if not isinstance(message, str):
        raise Malformed("tensor file: its metadata is not an object of strings")
    if len(header) > limits.num_tensors:
        raise LimitExceeded(f"tensor file with {len(header)} tensors: at most {limits.num_tensors} are accepted")
    for name, entry in header.items():
        _check_entry(name, entry, len(payload) - 8 - length, limits)
    return message.encode("utf-8", "surrogatepass")


def _check_entry(name: str, entry: object, data_bytes: int, limits: Limits) -> None:
    got = entry.get("dtype") if isinstance(entry, dict) else entry
    if not isinstance(entry, dict) or not isinstance(got, str) or got not in _DTYPES:
        raise Malformed(f"tensor {name[:80]!r}: dtype {str(got)[:40]!r}, expected one of {', '.join(_DTYPES)}")
    shape = entry.get("shape")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise Malformed(f"tensor {name[:80]!r}: shape {str(shape)[:40]}, expected a list of sizes")
    if len(shape) > limits.num_dims:
        raise LimitExceeded(f"tensor {name[:80]!r} has {len(shape)} dimensions: at most {limits.num_dims} are accepted")
    if prod(shape) * np.dtype(_DTYPES[entry["dtype"]]).itemsize > data_bytes:
        raise Malformed(f"tensor {name[:80]!r} of shape {shape}: the file has only {data_bytes} bytes of data")


def check_layout(tensors: Mapping[str, Array], expected: Iterable[tuple[str, str, tuple[int, ...]]], origin: str) -> None:
    """Compare names, dtypes and shapes with `expected`, a sequence of (name, dtype, shape).

    Raises:
        WrongLayout: the first difference, with what came, what was expected, and `origin`.
    """
    wanted = {name: (dtype, tuple(shape)) for name, dtype, shape in expected}
    for name in sorted(wanted.keys() | tensors.keys()):
        if name not in tensors:
            raise WrongLayout(f"{origin}: tensor {name!r} is missing")
        if name not in wanted:
            raise WrongLayout(f"{origin}: tensor {name[:80]!r} was not expected")
        got = (_NAMES.get(tensors[name].dtype) or str(tensors[name].dtype), tensors[name].shape)
        if got != wanted[name]:
            raise WrongLayout(f"{origin}: tensor {name!r} is {got[0]}{list(got[1])}, expected {wanted[name][0]}{list(wanted[name][1])}")
