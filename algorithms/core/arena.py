"""A round's models as rows of one array: how an update becomes a row, and how a row is read as
named tensors."""

from collections.abc import Mapping

import numpy as np

from algorithms.core.contract import Slice
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors


def layout_of(tensors: Mapping[str, Array]) -> tuple[Slice, ...]:
    """Where each tensor lies when they are all made one vector, in their order."""
    parts, at = [], 0
    for key, value in tensors.items():
        parts.append(Slice(key, at, at + value.size, value.shape))
        at += value.size
    return tuple(parts)


def size_of(layout: tuple[Slice, ...]) -> int:
    """D, the numbers in a model of this layout."""
    return layout[-1].stop if layout else 0


def views(row: Array, layout: tuple[Slice, ...]) -> Tensors:
    """The tensors (role and name) that lie in a row (D,), without a copy."""
    return {part.key: row[part.start : part.stop].reshape(part.shape) for part in layout}


def write_change(row: Array, layout: tuple[Slice, ...], received: Tensors, update: Tensors) -> None:
    """Write into a row (D,) float32 what a device changed: the ``delta/NAME`` of its update for a
    shared tensor, the difference from what it received for a statistic, 0 for what the update does
    not carry: that was not trained."""
    if layout:
        np.concatenate([_change(part, received, update).ravel() for part in layout], out=row)


def flatten(tensors: Tensors, layout: tuple[Slice, ...]) -> Array:
    """The tensors of a layout as one row (D,) float32, a copy."""
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
