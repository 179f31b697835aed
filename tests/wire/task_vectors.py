"""The vectors of what a device trains and tests on where a task needs no labels,
``without-labels.json``."""

import json

from tests.wire.signed_vectors import VECTORS
from wire.tasks import split_unlabelled

FILE = VECTORS / "without-labels.json"
CASES = [
    (0, 0, 132),
    (0, 0, 3),
    (0, 0, 1),
    (40, 0, 7),
    (40, 12, 100),
    (0, 12, 100),
    (40, 0, 0),
    (40, 12, 0),
    (0, 0, 0),
    (1, 0, 1),
]
"""Windows with labels for training, those set apart for testing, and those without labels."""


def text() -> str:
    """The file, a case a line."""
    keys = ("num_train", "num_test", "num_unlabelled", "trains_on", "tests_on")
    rows = [dict(zip(keys, (*case, *split_unlabelled(*case)), strict=True)) for case in CASES]
    return "[\n" + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]\n"
