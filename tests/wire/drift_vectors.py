"""The vectors of whether data have moved, ``drift.json``: pairs of sets of windows by their
features, how far they are apart, and windows (of two channels, one after the other) with their
features.
"""

import json

import numpy as np

from edge_client.live.drift import distance, features, has_moved
from tests.wire.signed_vectors import VECTORS

FILE = VECTORS / "drift.json"


def text() -> str:
    """The file."""
    rng = np.random.default_rng(0)
    pairs = []
    for n, m, shift in ((64, 64, 0.0), (64, 70, 0.3), (63, 64, 5.0), (80, 64, 1.0), (64, 64, 0.2)):
        one, other = (
            np.round(rng.normal(size=(count, 2)), 2) for count in (n, m)
        )  # some of the numbers are the same
        other = np.round(other + shift, 2)
        sets = {"one": one.tolist(), "other": other.tolist()}
        pairs.append(
            sets | {"distance": round(distance(one, other), 12), "moved": has_moved(one, other)}
        )
    x = np.round(rng.normal(size=(3, 2, 4)), 2).astype(np.float32)
    x[2, 1] = 0.5
    windows = {
        "windows": np.round(x.reshape(3, -1).astype(np.float64), 2).tolist(),
        "features": np.round(features(x), 9).tolist(),
    }
    return json.dumps({"pairs": pairs, **windows}) + "\n"
