"""The vectors of checkpoints, ``checkpoint.json``: what one must have been made of for work to go
on from it (`usable`), which plans ask for the same work (`plans`), and how the random numbers of a
plan go on from a state (`random`).
"""

import json
from typing import Any

import msgspec
import numpy as np

from edge_client.core.checkpoint import Random
from tests.wire.signed_vectors import VECTORS
from wire import messages as m
from wire.codec import encode

FILE = VECTORS / "checkpoint.json"

BASIS = {
    "format": 1,
    "client": "shoal 0.1.0",
    "runtime": "executorch",
    "plan": "a" * 64,
    "windows": "b" * 64,
}
CHANGES: list[tuple[str, dict[str, object]]] = [
    ("all is the same", {}),
    ("another format", {"format": 2}),
    ("an older format", {"format": 0}),
    ("another client", {"client": "shoal 0.2.0"}),
    ("another runtime", {"runtime": "onnxruntime"}),
    ("another plan", {"plan": "c" * 64}),
    ("other windows", {"windows": "c" * 64}),
    (
        "all is another",
        {"format": 2, "client": "x", "runtime": "y", "plan": "c" * 64, "windows": "d" * 64},
    ),
]
"""Current basis, beside that of the checkpoint."""

PLAN = m.Plan(
    "r",
    5,
    3,
    1,
    "d0",
    "a" * 64,
    "b" * 64,
    (m.Evaluate(), m.Train(8, 40, hyper={"lr": 0.1})),
    7,
    1000.0,
)
PLANS: list[tuple[str, dict[str, Any], bool]] = [
    ("the same plan", {}, True),
    ("an aggregator that was started again", {"epoch": 6, "deadline_at_s": 2000.0}, True),
    ("another run", {"run_id": "s"}, False),
    ("another round", {"round": 4}, False),
    ("another attempt", {"attempt": 2}, False),
    ("another device", {"device_id": "d1"}, False),
    ("another bundle", {"bundle": "c" * 64}, False),
    ("another model", {"model": "c" * 64}, False),
    ("another seed", {"seed": 8}, False),
    ("another encoding", {"encoding": "int8"}, False),
    ("a verb less", {"verbs": PLAN.verbs[:1]}, False),
    ("another learning rate", {"verbs": (m.Evaluate(), m.Train(8, 40, hyper={"lr": 0.2}))}, False),
]
"""A plan beside `PLAN`, and whether a checkpoint of the one is one of the other."""

SEEDS = [[7, 123456789], [0, 0], [2**53, 2**32 - 1]]
DRAWS = ["", "p", "pf", "ff", "fpfp", "pppfff"]
"""Numbers that are drawn before the state is taken: an order of 9 numbers (p), or 3 numbers (f)."""


def _random() -> list[dict[str, Any]]:
    made = []
    for seeds in SEEDS:
        for draws in DRAWS:
            rng = np.random.default_rng(seeds)
            for draw in draws:
                _ = rng.permutation(9) if draw == "p" else rng.random(3, np.float32)
            state = msgspec.to_builtins(Random.of(rng))
            order, floats = (
                rng.permutation(11).tolist(),
                rng.random(3, np.float32).astype(float).tolist(),
            )
            made.append(
                {
                    "seeds": seeds,
                    "drawn": draws,
                    "state": state,
                    "permutation": order,
                    "floats": floats,
                }
            )
    return made


def text() -> str:
    """The file, a case a line."""

    def lines(rows: list[dict[str, Any]]) -> str:
        return ",\n  ".join(json.dumps(row) for row in rows)

    usable = [
        {"name": name, "stored": BASIS, "now": {**BASIS, **change}, "used": not change}
        for name, change in CHANGES
    ]
    first = json.loads(encode(PLAN))
    plans = [
        {
            "name": name,
            "plan": first,
            "other": json.loads(encode(msgspec.structs.replace(PLAN, **change))),
            "same": same,
        }
        for name, change, same in PLANS
    ]
    parts = {"usable": usable, "plans": plans, "random": _random()}
    return (
        "{\n"
        + ",\n".join(f' "{name}": [\n  {lines(rows)}\n ]' for name, rows in parts.items())
        + "\n}\n"
    )


if __name__ == "__main__":
    FILE.write_text(text())
