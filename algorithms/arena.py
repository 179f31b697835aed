"""A round's models as rows of one array: how an update becomes a row, and how a row is read as named tensors."""

from collections.abc import Mapping

import numpy as np

from algorithms.contract import Slice
from wire.tensors import Array, Tensors


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
    """Write into a row (D,) float32 what a device changed: the ``delta/NAME`` of its update for a shared tensor, the difference from what
    it received for a statistic, 0 for what the update does not carry: that was not trained."""
    for key, out in views(row, layout).items():
        role, name = key.split("/", 1)
        if role == "shared":
            out[...] = update.get(f"delta/{name}", 0.0)
        else:
            np.subtract(update.get(key, received[key]), received[key], out=out)


def add_received(row: Array, layout: tuple[Slice, ...], received: Tensors) -> None:
    """Make a row of changes a model: add what the device had received."""
    for key, out in views(row, layout).items():
        np.add(out, received[key], out=out)
