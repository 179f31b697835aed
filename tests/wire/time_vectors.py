"""The vectors of what a device knows of the aggregator's clock, ``time.json``: a status that comes,
whether the device acts on it or ignores it, and what the aggregator's clock shows then, as far as
the device knows.

A step is (seconds since the step before, epoch, `at_s`, whether it is acted on, what the clock
shows). By the clock, a plan of this epoch and of an earlier one is judged. A plan of a later epoch
than `known` is not: its aggregator's clock may have been set.
"""

import json
from itertools import accumulate

from tests.wire.signed_vectors import VECTORS

FILE = VECTORS / "time.json"

Step = tuple[float, int, float, bool, float]

SCENARIOS: list[tuple[str, list[Step]]] = [
    ("the first status", [(0.0, 5, 1000.0, True, 1000.0)]),
    ("time goes on between two", [(0.0, 5, 1000.0, True, 1000.0), (5.0, 5, 1005.5, True, 1005.5)]),
    (
        "one that was under way for long",
        [(0.0, 5, 1000.0, True, 1000.0), (10.0, 5, 1002.0, True, 1010.0)],
    ),
    ("an epoch that is over", [(0.0, 5, 1000.0, True, 1000.0), (10.0, 4, 9000.0, False, 1010.0)]),
    (
        "an epoch that is over, as late as the other",
        [(0.0, 5, 1000.0, True, 1000.0), (0.0, 4, 1000.0, False, 1000.0)],
    ),
    (
        "a later epoch, whose clock was set back",
        [(0.0, 5, 1000.0, True, 1000.0), (10.0, 6, 900.0, True, 900.0)],
    ),
    (
        "back to an epoch that is over",
        [
            (0.0, 5, 1000.0, True, 1000.0),
            (1.0, 6, 900.0, True, 900.0),
            (1.0, 5, 1002.0, False, 901.0),
            (1.0, 6, 902.0, True, 902.0),
        ],
    ),
    ("the first epoch of all", [(0.0, 0, 1.0, True, 1.0), (1.0, 0, 2.0, True, 2.0)]),
]
"""A name and its steps."""


def text() -> str:
    """The file, a step a line."""
    keys = ("after_s", "epoch", "at_s", "acts", "now_s", "known")
    scenarios = []
    for name, steps in SCENARIOS:
        known = accumulate((step[1] for step in steps), max)
        pairs = zip(steps, known, strict=True)
        rows = ",\n   ".join(
            json.dumps(dict(zip(keys, (*step, epoch), strict=True))) for step, epoch in pairs
        )
        scenarios.append(f'  {{"name": {json.dumps(name)}, "steps": [\n   {rows}\n  ]}}')
    return "[\n" + ",\n".join(scenarios) + "\n]\n"
