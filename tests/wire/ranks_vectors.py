"""The vectors of the order in which windows are preferred, ``ranks.json``: how many have labels,
how many have not, the rank of each."""

import json

from edge_client.core.policy import ranks
from tests.wire.signed_vectors import VECTORS

FILE = VECTORS / "ranks.json"
CASES = [
    (0, 0),
    (1, 0),
    (0, 1),
    (2, 3),
    (7, 0),
    (0, 12),
    (40, 5),
    (6, 2),
    (5, 40),
    (100, 300),
    (300, 10),
]


def text() -> str:
    """The file, a case a line."""
    rows = [{"labelled": n, "unlabelled": m, "ranks": ranks(n, m).tolist()} for n, m in CASES]
    return "[\n" + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]\n"
