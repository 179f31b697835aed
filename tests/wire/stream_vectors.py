"""The vectors of streams, ``stream.json``: the model's probabilities for windows with their begins,
and after each window the answer, the two sums and the probability that the next class is the same.
"""

import json

import numpy as np

from edge_client.core.stream import StreamFilter, StreamSums
from tests.wire.signed_vectors import VECTORS
from wire.arrays.tensors import Array

FILE = VECTORS / "stream.json"
STEP_S = 1.5
BUNDLE = "b" * 64


def _probabilities(rng: np.random.Generator, classes: Array, count: int) -> Array:
    logits = rng.normal(size=(len(classes), count))
    logits[np.arange(len(classes)), classes] += 2
    p = np.exp(logits)
    return np.asarray(np.round(p / p.sum(1, keepdims=True), 4), np.float32)


def text() -> str:
    """The file."""
    rng = np.random.default_rng(0)
    lasting = np.repeat(rng.integers(4, size=8), 8)
    begins = STEP_S * np.arange(len(lasting))
    gaps = begins + np.where(np.arange(64) < 20, 0, 5) - np.where(np.arange(64) < 40, 0, 90)
    unsure = _probabilities(rng, lasting, 4)
    unsure[[10, 30]] = 0
    cases = {
        "activities": (0.0, 0.0, begins, _probabilities(rng, lasting, 4)),
        "no order": (0.0, 0.0, begins, _probabilities(rng, rng.integers(4, size=64), 4)),
        "gaps, and a clock set back": (80.0, 10.0, gaps, _probabilities(rng, lasting, 4)),
        "no answer": (80.0, 10.0, begins, unsure),
        "many windows before": (949.5, 50.0, begins, _probabilities(rng, lasting, 4)),
        "two classes": (9.0, 1.0, begins, _probabilities(rng, lasting % 2, 2)),
    }
    return json.dumps([_case(name, *case) for name, case in cases.items()]) + "\n"


def _case(name: str, stays: float, changes: float, begins: Array, p: Array) -> dict[str, object]:
    stream, steps = StreamFilter(StreamSums(BUNDLE, stays, changes), STEP_S), []
    for begin_s, own in zip(begins.tolist(), p, strict=True):
        [(_, answer)] = stream.answer(begin_s, own)
        steps.append(
            {
                "begin_s": begin_s,
                "p": [round(float(value), 4) for value in own],
                "answer": [round(float(value), 7) for value in answer],
                "sums": [round(stream.sums.stays, 9), round(stream.sums.changes, 9)],
                "stay": round(stream.sums.stay(len(own)), 9),
            }
        )
    return {"name": name, "stays": stays, "changes": changes, "step_s": STEP_S, "steps": steps}
