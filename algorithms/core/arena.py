"""Models of a round as rows of one array: writing an update as a row, reading a row as tensors."""

from collections.abc import Mapping

import numpy as np

from algorithms.core.contract import Slice
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors


def layout_of(tensors: Mapping[str, Array]) -> tuple[Slice, ...]:
    """Return the slice of each tensor in the vector of all tensors, in their order."""
    parts, at = [], 0
    for key, value in tensors.items():
        parts.append(Slice(key, at, at + value.size, value.shape))
        at += value.size
    return tuple(parts)


def size_of(layout: tuple[Slice, ...]) -> int:
    """Return D, the number of values of a model of this layout."""
    return layout[-1].stop if layout else 0


def views(row: Array, layout: tuple[Slice, ...]) -> Tensors:
    """Return the tensors by ``ROLE/NAME`` that lie in a row (D,), without a copy."""
    return {part.key: row[part.start : part.stop].reshape(part.shape) for part in layout}


def write_change(row: Array, layout: tuple[Slice, ...], received: Tensors, update: Tensors) -> None:
    """Write a device's change of its model into a row (D,) float32.

    The change of a shared tensor is the ``delta/NAME`` of the update. The change of a statistic is
    the difference from the received one. A tensor that the update does not contain was not trained:
    its change is 0.
    """
    if layout:
        np.concatenate([_change(part, received, update).ravel() for part in layout], out=row)


def flatten(tensors: Tensors, layout: tuple[Slice, ...]) -> Array:
    """Return the tensors of a layout as one row (D,) float32, a copy."""
    return (
        np.concatenate([tensors[part.key].ravel() for part in layout])
        if layout
        else np.zeros(0, np.float32)
    )


def _change(part: Slice, received: Tensors, update: Tensors) -> Array:
    role, name = names.role_of(part.key), names.name_of(part.key)
    if role != names.SHARED:
        return update.get(part.key, received[part.key]) - received[part.key]
    change = update.get(names.delta(name))
    return np.zeros(part.shape, np.float32) if change is None else change
