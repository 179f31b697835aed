"""The vectors of windows of ids, ``ids.json``: a vocabulary, the values of some windows, and the
first window that is refused, or none."""

import json

import numpy as np

from edge_client.data.layout import fitting
from tests.wire.signed_vectors import VECTORS
from wire.bundle import Window
from wire.errors import DataError

FILE = VECTORS / "ids.json"
CASES: list[tuple[int, list[list[int]]]] = [
    (0, [[-3, 70000], [5, 5]]),
    (1, [[0, 0]]),
    (1, [[0, 1]]),
    (24, [[0, 23], [23, 0], [5, 5]]),
    (24, [[0, 23], [24, 0], [99, 5]]),
    (24, [[0, 23], [3, 0], [-1, 5]]),
    (2**31 - 1, [[2**31 - 2, 0]]),
    (2**31 - 1, [[0, 1], [0, 2**31 - 1]]),
    (24, [[0, 2**33]]),
]


def first_refused(vocabulary: int, x: list[list[int]]) -> int | None:
    """The window that Python's client refuses."""
    try:
        fitting(np.array(x)[:, None], Window(("event",), 2, 2, vocabulary=vocabulary), "x")
    except DataError as error:
        return int(str(error).partition("at window ")[2].partition(",")[0])
    return None


def text() -> str:
    """The file, a case a line."""
    rows = [
        {"vocabulary": vocabulary, "windows": x, "refused": first_refused(vocabulary, x)}
        for vocabulary, x in CASES
    ]
    return "[\n" + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]\n"
