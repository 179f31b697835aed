"""The vectors of what a device has stored in a run, ``private.json``: what a bundle's manifest says
of private tensors, what is stored, and what of it a plan goes on from (`used`), by name. The device
has `num_train` windows to train on."""

import json

from tests.wire.signed_vectors import VECTORS

FILE = VECTORS / "private.json"
NUM_TRAIN = 5
SPECS: list[tuple[str, str, list[int]]] = [
    ("b", "float32", [3]),
    ("w", "float32", [2, 3]),
    ("step", "int64", []),
]

CASES: list[tuple[str, str, str, list[int], bool]] = [
    ("as the manifest says it", "private/b", "float32", [3], True),
    ("a scalar", "private/step", "int64", [], True),
    ("of another shape", "private/b", "float32", [4], False),
    ("of as many numbers", "private/w", "float32", [3, 2], False),
    ("with one axis more", "private/b", "float32", [1, 3], False),
    ("of another type", "private/b", "int64", [3], False),
    ("that the bundle does not have", "private/old", "float32", [3], False),
    ("a column of all windows", "column/weight", "float32", [5], True),
    ("a column of all windows, several numbers each", "column/weight", "float32", [5, 2], True),
    ("a column of other windows", "column/weight", "float32", [4], False),
    ("a column of none", "column/weight", "float32", [0], False),
    ("a column without axis", "column/weight", "float32", [], False),
    ("what was kept of a model", "personal/memory/b", "float32", [3], False),
    ("a parameter", "shared/b", "float32", [3], False),
]
"""A name; the tensor that is stored: its name, type and shape; whether it is used."""


def text() -> str:
    """The file, a case a line."""
    rows = []
    for name, key, dtype, shape, is_used in CASES:
        stored = [{"name": key, "dtype": dtype, "shape": shape}]
        rows.append({"name": name, "stored": stored, "used": [key] if is_used else []})
    specs = [
        {"name": name, "role": "private", "dtype": dtype, "shape": shape}
        for name, dtype, shape in SPECS
    ]
    about = json.dumps({"num_train": NUM_TRAIN, "tensors": specs})
    return (
        '{"about": '
        + about
        + ',\n "cases": [\n'
        + ",\n".join("  " + json.dumps(row) for row in rows)
        + "\n]}\n"
    )
