"""The vectors of a comparison of two models, ``comparison.json``: the losses of the model in use
and of the one before over the same windows, the gain of the one before, and its standard error.
"""

import json

import numpy as np

from edge_client.models.trial import gain
from tests.wire.signed_vectors import VECTORS
from wire.arrays.tensors import Array

FILE = VECTORS / "comparison.json"


def text() -> str:
    """The file."""
    rng = np.random.default_rng(0)
    cases = []
    for count, shift in ((8, 0.0), (8, 0.3), (9, -0.5), (256, 0.05), (40, 0.2)):
        used = np.round(rng.exponential(size=count), 4)
        other = np.round(np.maximum(0, used - shift + rng.normal(size=count) / 2), 4)
        cases.append((used, other))
    cases.append((np.full(8, 1.5), np.full(8, 1.25)))
    return json.dumps([_case(*case) for case in cases]) + "\n"


def _case(used: Array, other: Array) -> dict[str, object]:
    better, error = gain(used, other)
    values = {"used": used.tolist(), "other": other.tolist()}
    return {**values, "gain": round(better, 9), "error": round(error, 9)}
