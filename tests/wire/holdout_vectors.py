"""The vectors of held-out windows, ``holdout.json``: the labels of the windows, the share, and the
places of those that are held out."""

import json

import numpy as np

from tests.wire.recordings_vectors import said_of
from tests.wire.signed_vectors import VECTORS
from wire.arrays.tensors import Array
from wire.held import held_out

FILE = VECTORS / "holdout.json"
SHARES = (0.0, 0.001, 0.1, 0.2, 0.25, 1 / 3, 0.6, 0.999)
LABELS = {
    "classes in turn": [i % 5 for i in range(97)],
    "a class in stretches": [i // 8 % 4 for i in range(128)],
    "classes one after the other": [i // 5 for i in range(60)],
    "of each class one": list(range(18)),
    "of each class three": [i // 3 for i in range(36)],
    "a class of one window": [0] * 20 + [7] + [3] * 20,
    "classes by chance": np.random.default_rng(4)
    .choice(6, 255, p=(0.5, 0.2, 0.1, 0.1, 0.09, 0.01))
    .tolist(),
}
CASES = [([0] * n, share) for n in (0, 1, 2, 5, 11, 12, 40, 97, 255) for share in SHARES]
CASES += [(y, share) for y in LABELS.values() for share in SHARES]
NO_CLASSES: list[Array] = [
    np.array([[i // 7 % 3, 2 - i // 7 % 3, -1 if i % 5 else i // 9] for i in range(40)]),
    np.array([[-1, -1]] * 9 + [[3, 1]] * 9 + [[1, 1]] * 9),
    np.zeros(40, np.float32),
    np.arange(80).reshape(40, 2),
    np.zeros((40, 3), np.int64),
]
"""Quantities, steps and several labels."""


def text() -> str:
    """The file, a case a line."""
    cases = [(np.array(y, np.int64), share) for y, share in CASES] + [(y, 0.25) for y in NO_CLASSES]
    rows = [
        {"y": said_of(y), "share": share, "held": np.flatnonzero(held_out(y, share)).tolist()}
        for y, share in cases
    ]
    return "[\n" + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]\n"
