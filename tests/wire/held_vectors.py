"""The vectors of held-out windows, ``held.json``: how many windows there are, the share, and the places of those that are held out."""

import json

import numpy as np

from edge_client.core.held import held_out
from tests.wire.signed_vectors import VECTORS

FILE = VECTORS / "held.json"
CASES = [(n, share) for n in (0, 1, 2, 5, 11, 12, 40, 97, 255) for share in (0.0, 0.001, 0.1, 0.2, 0.25, 1 / 3, 0.6, 0.999)]


def text() -> str:
    """The file, a case a line."""
    rows = [{"windows": n, "share": share, "held": np.flatnonzero(held_out(n, share)).tolist()} for n, share in CASES]
    return "[\n" + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]\n"
