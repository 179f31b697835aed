"""Cells of devices in secret mode: a robust mean compares sums over them. Pure."""

from collections.abc import Iterable

from wire.codec import digest

LEAST_CELLS = 3
"""Minimum number of cells that a robust mean compares: two have no majority."""
_OF_CELL = "."
"""Separator of the key of a model and the number of a cell, in the key of a cell's sum."""


def cells_of(device_ids: Iterable[str], min_sum: int) -> list[tuple[str, ...]]:
    """Return as many cells of at least `min_sum` devices as possible, by the hashes of ids."""
    ordered = sorted(device_ids, key=lambda d: (digest(d.encode()), d))
    count = max(1, len(ordered) // min_sum)
    return [tuple(sorted(ordered[number::count])) for number in range(count)]


def start_of(key: str) -> str:
    """Return the key of the model that the devices of a sum start from."""
    return key.partition(_OF_CELL)[0]


def cell_key(start: str, number: int) -> str:
    """Return the key of the sum over a cell of the devices that start from a model."""
    return f"{start}{_OF_CELL}{number}"
