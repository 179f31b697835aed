"""The vectors of how long an epoch is, ``epochs.json``: what a device has, what a plan's `train`
asks for, and the sizes of the batches."""

import json

import numpy as np

from edge_client.core.batches import training_batches
from tests.wire.signed_vectors import VECTORS
from wire.messages import Train

FILE = VECTORS / "epochs.json"
CASES = [
    (40, 0, Train(16)),
    (40, 0, Train(16, most_passes=16)),
    (40, 300, Train(16)),
    (40, 300, Train(16, most_passes=16)),
    (40, 300, Train(16, 3, most_passes=2)),
    (30, 220, Train(32, 2, most_passes=16)),
    (6, 100_000, Train(32, most_passes=16)),
    (33, 31, Train(16, 2, most_passes=16)),
    (40, 300, Train(16, 2, steps=4, most_passes=16)),
    (40, 7, Train(16, most_passes=1000)),
    (35, 0, Train(32)),
    (67, 0, Train(32, 2)),
    (48, 0, Train(32)),
    (47, 0, Train(32)),
    (7, 0, Train(2)),
    (7, 0, Train(3)),
]
"""Number of windows with labels, of windows without, and the verb; no batch has less than 2."""


def text() -> str:
    """The file, a case a line."""
    rows = []
    for labelled, unlabelled, train in CASES:
        batches = training_batches(
            train, np.arange(labelled), unlabelled, 2, np.random.default_rng(0)
        )
        asked = {
            "batch_size": train.batch_size,
            "epochs": train.epochs,
            "steps": train.steps,
            "most_passes": train.most_passes,
        }
        rows.append(
            {
                "labelled": labelled,
                "unlabelled": unlabelled,
                **asked,
                "sizes": [len(batch) for batch in batches],
            }
        )
    return "[\n" + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]\n"
