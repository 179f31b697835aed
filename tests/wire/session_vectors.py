"""The vectors of a device's memory, ``session.json``: what happens to it, and what it does, step by step.

A step is an event, its arguments, and the action that follows (with a decline: its reason). Plans are (epoch, round, attempt, run,
deadline); updates are named by one hexadecimal digit.
"""

import json

from tests.wire.signed_vectors import VECTORS

FILE = VECTORS / "session.json"

Step = tuple[str, dict[str, object], str]


def plan(epoch: int, number: int, action: str, attempt: int = 0, run: str = "r", deadline_at_s: float = 1000.0, now_s: float = 0.0) -> Step:
    arguments = {"epoch": epoch, "round": number, "attempt": attempt, "run": run, "deadline_at_s": deadline_at_s, "now_s": now_s}
    return "plan", arguments, action


def event(kind: str, action: str = "none", **arguments: object) -> Step:
    return kind, arguments, action


TRY, DID = event("start", "work"), event("executed", update="1")
ACKNOWLEDGED = event("acknowledge", "drop", update="1")
DONE = [TRY, DID, ACKNOWLEDGED]
"""The plan is carried out, and its update is acknowledged."""
FIRST = plan(1, 1, "work")

SCENARIOS: list[tuple[str, list[Step]]] = [
    ("rounds follow each other", [FIRST, *DONE, plan(1, 2, "work"), *DONE]),
    ("a plan twice", [FIRST, plan(1, 1, "none"), *DONE, plan(1, 1, "none")]),
    ("a plan again while its update is pending", [FIRST, TRY, DID, plan(1, 1, "send")]),
    ("a late plan", [plan(1, 2, "work"), plan(1, 1, "none"), *DONE]),
    (
        "a later plan while working",
        [FIRST, plan(1, 2, "work"), DID, ACKNOWLEDGED],
    ),
    ("the round is opened again", [FIRST, *DONE, plan(1, 1, "work", attempt=1), *DONE, plan(1, 1, "none")]),
    (
        "the aggregator was started again while working",
        [FIRST, TRY, plan(2, 1, "none"), DID, plan(2, 1, "send")],
    ),
    ("the aggregator was started again and lost an update", [FIRST, *DONE, plan(2, 1, "work"), *DONE]),
    ("a backup two rounds old", [plan(1, 3, "work"), *DONE, plan(2, 1, "work"), *DONE, plan(2, 2, "work"), *DONE]),
    ("a backup, and a clock that went back", [plan(5, 3, "work"), *DONE, plan(4, 1, "decline stale"), plan(6, 1, "work"), *DONE]),
    ("an epoch that is over", [plan(5, 3, "work"), plan(4, 4, "decline stale"), plan(4, 1, "decline stale", run="s"), *DONE]),
    ("another run", [plan(1, 9, "work"), *DONE, plan(2, 1, "work", run="s"), *DONE, plan(2, 2, "work", run="s")]),
    ("refused", [FIRST, TRY, DID, event("refuse", "drop", update="1"), plan(1, 1, "none")]),
    (
        "an answer to something else",
        [FIRST, TRY, DID, event("acknowledge", update="2"), event("refuse", update="")],
    ),
    (
        "busy",
        [
            FIRST,
            TRY,
            DID,
            event("busy", update="1"),
            plan(1, 1, "send"),
            ACKNOWLEDGED,
        ],
    ),
    (
        "a plan whose time is over",
        [plan(1, 1, "decline expired", now_s=1001.0), plan(1, 1, "decline expired", now_s=1002.0), plan(1, 2, "work")],
    ),
    ("its time is over now", [plan(1, 1, "work", now_s=1000.0)]),
    (
        "declined",
        [FIRST, TRY, event("declined", "decline policy", reason="policy"), plan(1, 1, "decline policy"), plan(1, 2, "work")],
    ),
    (
        "declined, and the aggregator was started again",
        [FIRST, event("declined", "decline data", reason="data"), plan(2, 1, "work")],
    ),
    (
        "work that ends the client",
        [FIRST, *[TRY] * 5, event("start", "decline quarantined"), plan(1, 1, "decline quarantined"), plan(1, 2, "work"), TRY],
    ),
    ("work that is stopped in good order", [FIRST, *[TRY, event("stopped")] * 7, *DONE]),
    ("a finished run", [plan(2, 1, "work"), *DONE, event("finish", epoch=2, offered="a"), plan(3, 1, "work", run="s")]),
    (
        "a finish of an epoch that is over",
        [event("finish", epoch=3, offered="a"), event("finish", epoch=2, offered="b"), event("finish", epoch=3, offered="c")],
    ),
    (
        "a finish while working",
        [FIRST, TRY, event("finish", epoch=1, offered="a"), DID, plan(1, 1, "none")],
    ),
]
"""A name and its steps."""
OFFERED = {"a finished run": "a", "a finish of an epoch that is over": "c", "a finish while working": "a"}
"""By name, the model that the last finish offered, where there was one: one hexadecimal digit."""


def text() -> str:
    """The file, a step a line."""
    scenarios = []
    for name, steps in SCENARIOS:
        rows = ",\n   ".join(json.dumps({"event": kind, **arguments, "action": action}) for kind, arguments, action in steps)
        scenarios.append(f'  {{"name": {json.dumps(name)}, "offered": {json.dumps(OFFERED.get(name, ""))}, "steps": [\n   {rows}\n  ]}}')
    return "[\n" + ",\n".join(scenarios) + "\n]\n"
