"""The vectors of windows of different lengths, ``padding.json``: windows, and what they are padded
to; windows, and what a bundle takes."""

import json
from typing import Any

import numpy as np

from edge_client.data.layout import fitting
from edge_client.data.padding import PRESENCE, stacked, with_presence
from tests.wire.recordings_vectors import said_of
from tests.wire.signed_vectors import VECTORS
from wire.arrays.tensors import Array
from wire.bundle import Window
from wire.errors import DataError

FILE = VECTORS / "padding.json"
SHAPES: list[tuple[list[tuple[int, ...]], int]] = [
    ([(2, 3), (2, 1), (2, 4)], 4),
    ([(2, 3), (2, 1)], 6),
    ([(1, 5)], 5),
    ([(2, 3), (2, 5)], 4),
    ([(2, 3), (1, 3)], 4),
    ([(2, 3), (2, 0)], 4),
    ([(3,)], 4),
    ([], 4),
]
"""Shapes of windows, and the length that they are padded to; the last ones are refused."""
FITTED: list[tuple[tuple[int, ...], tuple[str, ...], int]] = [
    ((2, 3, 4), ("a", "b", PRESENCE), 6),
    ((2, 3, 4), ("a", "b", PRESENCE), 4),
    ((0, 3, 4), ("a", "b", PRESENCE), 6),
    ((2, 3, 4), ("a", "b", "c"), 6),
    ((2, 2, 4), ("a", "b", PRESENCE), 6),
    ((2, 3, 8), ("a", "b", PRESENCE), 6),
]
"""Shapes of windows, and the channels and the length of a bundle's: the first ones are padded, the
others stay as they are."""


def padded(windows: list[Array], length: int) -> Array | None:
    """Return the padded windows, or None if they are refused."""
    try:
        return with_presence(*stacked(windows, length, "here"), "here")
    except DataError:
        return None


def text() -> str:
    """The file, a case a line."""
    rng, made = np.random.default_rng(4), list[dict[str, Any]]()

    def numbers(shape: tuple[int, ...]) -> Array:
        return rng.integers(-99, 99, shape).astype(np.float32) / 4

    for shapes, length in SHAPES:
        windows = [numbers(shape) for shape in shapes]
        found = padded(windows, length)
        made.append(
            {
                "windows": [said_of(w) for w in windows],
                "length": length,
                "padded": None if found is None else said_of(found),
            }
        )
    for shape, channels, length in FITTED:
        x = numbers(shape)
        fitted = fitting(x, Window(channels, length, length), "here")
        made.append(
            {
                "x": said_of(x),
                "channels": list(channels),
                "length": length,
                "fitted": said_of(fitted),
            }
        )
    return "[\n" + ",\n".join("  " + json.dumps(row) for row in made) + "\n]\n"
