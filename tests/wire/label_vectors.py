"""The vectors of labels that a task takes or refuses, ``labels.json``."""

import json

import numpy as np

from edge_client.core.ports import Windows
from edge_client.data.labels import fit_labels_of
from tests.wire.signed_vectors import VECTORS
from wire.bundle import Manifest, Window
from wire.errors import DataError
from wire.tasks import TaskName

FILE = VECTORS / "labels.json"
STEPS = 4
"""Steps of a window in the task of sequences; in others, none."""
CASES: list[tuple[TaskName, int, str, object, bool]] = [
    ("classification", 3, "int64", [0, 2, 1], True),
    ("classification", 3, "int64", [0, 3], False),
    ("classification", 3, "int64", [0, -1], False),
    ("classification", 3, "int64", [[0, 1, 0], [1, 0, 0]], False),
    ("classification", 3, "int64", [], True),
    ("multi-label", 3, "int64", [[0, 1, 1], [0, 0, 0]], True),
    ("multi-label", 1, "int64", [[1], [0]], True),
    ("multi-label", 3, "int64", [[0, 1], [1, 0]], False),
    ("multi-label", 3, "int64", [[0, 1, 2], [0, 0, 0]], False),
    ("multi-label", 3, "int64", [[0, 1, -1]], False),
    ("multi-label", 3, "int64", [0, 1, 1], False),
    ("multi-label", 3, "int64", [], True),
    ("multi-label", 3, "float32", [[0.0, 1.0, 1.0]], False),
    ("regression", 2, "float32", [[0.5, -2.0], [1e6, 0.25]], True),
    ("regression", 1, "float32", [[36.5], [37.25]], True),
    ("regression", 2, "float32", [[0.5], [1.5]], False),
    ("regression", 2, "float32", [], True),
    ("regression", 1, "int64", [36, 37], False),
    ("regression", 2, "int64", [[0, 1], [1, 0]], False),
    ("classification", 3, "float32", [[0.0], [1.0]], False),
    ("sequence", 3, "int64", [[0, 2, 1, 1], [0, -1, -1, 2]], True),
    ("sequence", 3, "int64", [], True),
    ("sequence", 3, "int64", [[0, 1, 2], [0, 0, 0]], False),
    ("sequence", 3, "int64", [[0, 1, 2, 3]], False),
    ("sequence", 3, "int64", [[0, 1, -2, 0]], False),
    ("sequence", 3, "int64", [[0, 1, 2, 0], [-1, -1, -1, -1]], False),
    ("sequence", 3, "int64", [0, 1], False),
    ("sequence", 4, "float32", [[0.0, 1.0, 1.0, 0.0]], False),
    ("classification", 3, "int64", [[0, 2, 1, 1]], False),
]
"""A task, how many names its bundle has, labels, and whether the task takes them."""


def steps_of(task: TaskName) -> int:
    """Return the number of steps of a window of the task."""
    return STEPS if task == "sequence" else 0


def manifest_of(task: TaskName, num_names: int) -> Manifest:
    """A manifest of a task with so many names."""
    names = tuple("abcdefgh"[:num_names])
    return Manifest(
        "m",
        1,
        "a",
        {},
        names,
        Window(("c",), 4, 1, steps=steps_of(task)),
        2,
        {},
        (),
        {},
        {},
        task=task,
    )


def fits(task: TaskName, num_names: int, y: np.ndarray) -> bool:
    """Return True if the task accepts these labels."""
    x = np.zeros((len(y), 1, 4), np.float32)
    try:
        fit_labels_of(Windows(x, y, x[:0], y[:0]), manifest_of(task, num_names))
    except DataError:
        return False
    return True


def text() -> str:
    """The file, a case a line."""
    rows = []
    for task, count, dtype, values, taken in CASES:
        y = np.array(values, dtype)
        own = {
            "task": task,
            "names": list("abcdefgh"[:count]),
            "steps": steps_of(task),
            "dtype": dtype,
            "shape": list(y.shape),
        }
        rows.append(json.dumps(own | {"y": y.ravel().tolist(), "fits": taken}))
    return "[\n" + ",\n".join("  " + row for row in rows) + "\n]\n"
