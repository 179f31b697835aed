"""Changes of updates in eight bits a number (SPEC.md, 'Updates in int8').

Devices, the aggregator and simulations use it. Every block of `BLOCK` numbers has its own scale.
Numbers are rounded up or down at random, so that the expected value is the exact one, and errors
cancel out in the mean of many updates: D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic.
QSGD: Communication-efficient SGD via gradient quantization and encoding. NeurIPS 2017, section 3,
with the greatest magnitude for the norm.
"""

import zlib
from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from wire.arrays import names
from wire.arrays.tensors import Array, Tensors, check_layout
from wire.errors import WrongLayout
from wire.fields import Encoding

ENCODINGS: tuple[Encoding, ...] = ("int8",)
"""Encodings of `encoded` besides float32."""
BLOCK = 256
"""Number of values that share a scale."""
LARGEST = 127
"""Magnitude to which a block's greatest magnitude is scaled."""
_DRAW = 0x18
"""Part of the seed that separates the draws of the rounding from all other draws."""

Entry = tuple[str, str, tuple[int, ...]]
"""Name, dtype and shape of a tensor."""


def encoded(tensors: Tensors, encoding: Encoding, seed: int, device_id: str) -> Tensors:
    """Return an update's tensors in the encoding of its plan.

    In int8 the two tensors ``int8/...`` replace all ``delta/NAME`` of float32. An update with a
    value that is not finite stays in float32, so that it is refused for that value.

    Args:
        seed: the plan's; the rounding is drawn from it and from `device_id`.
    """
    changes = _changes((name, str(array.dtype), array.shape) for name, array in tensors.items())
    if (
        encoding == "float32"
        or not changes
        or not all(np.isfinite(tensors[name]).all() for name, _ in changes)
    ):
        return tensors
    flat = np.concatenate([tensors[name].ravel() for name, _ in changes])
    rng = np.random.default_rng([seed, zlib.crc32(device_id.encode()), _DRAW])
    blocks, draws = _blocks(changes), rng.random(flat.size, dtype=np.float32)
    begins = np.concatenate([[0], np.cumsum(blocks)[:-1]]).astype(np.int64)
    peaks = np.maximum.reduceat(np.abs(flat), begins) if flat.size else np.zeros(0, np.float32)
    scales = peaks / np.float32(LARGEST)
    wide = np.repeat(scales, blocks)
    steps = np.divide(flat, wide, out=np.zeros_like(flat), where=wide > 0)
    values = np.clip(np.floor(steps + draws), -LARGEST, LARGEST).astype(np.int8)
    shapes = dict(changes)
    others = {name: array for name, array in tensors.items() if name not in shapes}
    return {**others, names.INT8_VALUES: values, names.INT8_SCALES: scales}


def decoded(tensors: Tensors, layout: Iterable[Entry]) -> Tensors:
    """Return an int8 update with its changes as ``delta/NAME`` float32.

    A product may overflow to a value that is not finite. `layout`: tensors that the plan's training
    reports; other entries are ignored.

    Raises:
        WrongLayout: its tensors ``int8/...`` do not have this layout; raised before memory is
            allocated.
    """
    changes = _changes(layout)
    if not changes:
        raise WrongLayout("update: its changes are in int8, but its plan asked for no changes")
    if both := [name for name, _ in changes if name in tensors]:
        raise WrongLayout(
            f"update: has both {both[0]!r} and {names.INT8_VALUES!r}; expected one of them"
        )
    blocks = _blocks(changes)
    expected = [
        (names.INT8_VALUES, "int8", (int(blocks.sum()),)),
        (names.INT8_SCALES, "float32", (len(blocks),)),
    ]
    check_layout(names.of_role(tensors, names.INT8), expected, "update")
    with np.errstate(over="ignore", invalid="ignore"):
        flat = tensors[names.INT8_VALUES].astype(np.float32) * np.repeat(
            tensors[names.INT8_SCALES], blocks
        )
    ends = np.cumsum([prod(shape) for _, shape in changes])[:-1]
    deltas = {
        name: part.reshape(shape)
        for (name, shape), part in zip(changes, np.split(flat, ends), strict=True)
    }
    return dict(
        sorted(
            {
                **{
                    key: value for key, value in tensors.items() if names.role_of(key) != names.INT8
                },
                **deltas,
            }.items()
        )
    )


def change_bytes(layout: Iterable[Entry], encoding: Encoding) -> int:
    """Return the size of this layout's changes in an update, in bytes, without their names."""
    changes = _changes(layout)
    size = sum(prod(shape) for _, shape in changes)
    return 4 * size if encoding == "float32" else size + 4 * len(_blocks(changes))


def _changes(entries: Iterable[Entry]) -> list[tuple[str, tuple[int, ...]]]:
    """Return name and shape of the float32 changes, in the order of their names."""
    shapes = {
        name: shape
        for name, dtype, shape in entries
        if dtype == "float32" and names.role_of(name) == names.DELTA
    }
    return sorted(shapes.items())


def _blocks(changes: Sequence[tuple[str, tuple[int, ...]]]) -> Array:
    """Return the number of values of each block (B,) int64.

    Every tensor begins a new block, and its last block has the rest.
    """
    sizes = [prod(shape) for _, shape in changes]
    return np.array(
        [min(BLOCK, size - at) for size in sizes for at in range(0, size, BLOCK)], np.int64
    )
