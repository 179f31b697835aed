"""The vectors of a device's memory, ``session.json``: what happens to it, and what it does, step by
step.

A step is an event, its arguments, and the action that follows (with a decline: its reason). Plans
are (epoch, round, attempt, run, deadline); updates and models are named by one hexadecimal digit. A
release, or an offer of a finished run, is followed by the action "try" if it is to be taken into
use. "try" is the beginning of that, after which comes "taken", "failed", "broken off", or, if it
ended the client, nothing. "again" is a new start of the client, or the end of a while: what failed
is tried again. "kept" is what the device keeps of a model, followed by "try" if that is the model
in use. "back" is a device that goes back to the model before, or from there to the newer one.
"client start" is a new start of the client, followed by "killed" if it had ended in the
midst of the work. "report" has what the device says of its releases; a problem is one word.
"""

import json

from tests.wire.signed_vectors import VECTORS

FILE = VECTORS / "session.json"

Step = tuple[str, dict[str, object], str]


def plan(
    epoch: int,
    number: int,
    action: str,
    attempt: int = 0,
    run: str = "r",
    deadline_at_s: float = 1000.0,
    now_s: float = 0.0,
) -> Step:
    arguments = {
        "epoch": epoch,
        "round": number,
        "attempt": attempt,
        "run": run,
        "deadline_at_s": deadline_at_s,
        "now_s": now_s,
    }
    return "plan", arguments, action


def event(kind: str, action: str = "none", **arguments: object) -> Step:
    return kind, arguments, action


def release(number: int, model: str, action: str = "none", epoch: int = 1) -> Step:
    return "release", {"number": number, "offered": model, "epoch": epoch}, action


def taken(number: int, model: str, epoch: int = 1) -> list[Step]:
    """A release that is taken into use."""
    return [release(number, model, "try", epoch), event("taken")]


def finished(number: int, model: str, **run: str) -> list[Step]:
    """A finished run whose model is taken into use."""
    finish = event("finish", "try", epoch=2, number=number, offered=model, **run)
    return [finish, event("taken")]


def kept(of: str, tensors: str, action: str = "none") -> Step:
    """Return the step of a plan that leaves a personal model."""
    return "kept", {"of": of, "tensors": tensors}, action


def report(
    number: int, offered: int, problem: str = "", used: str = "", alone: bool = False
) -> Step:
    """Return the step of a report: the releases, the personal model in use, and if the model in use
    answers without one."""
    return (
        "report",
        {"number": number, "offered": offered, "problem": problem, "used": used, "alone": alone},
        "none",
    )


TRY, DID = event("start", "work"), event("executed", update="1")
ACKNOWLEDGED = event("acknowledge", "drop", update="1")
DONE = [TRY, DID, ACKNOWLEDGED]
"""The plan is carried out, and its update is acknowledged."""
FIRST = plan(1, 1, "work")
OVER = event("start", "decline quarantined")


def further(runs: int) -> Step:
    """A checkpoint lies on the disk, after so many runs of a graph."""
    return event("progress", runs=runs)


SCENARIOS: list[tuple[str, list[Step]]] = [
    ("rounds follow each other", [FIRST, *DONE, plan(1, 2, "work"), *DONE]),
    ("a plan twice", [FIRST, plan(1, 1, "none"), *DONE, plan(1, 1, "none")]),
    ("a plan again while its update is pending", [FIRST, TRY, DID, plan(1, 1, "send")]),
    ("a late plan", [plan(1, 2, "work"), plan(1, 1, "none"), *DONE]),
    (
        "a later plan while working",
        [FIRST, plan(1, 2, "work"), DID, ACKNOWLEDGED],
    ),
    (
        "the round is opened again",
        [FIRST, *DONE, plan(1, 1, "work", attempt=1), *DONE, plan(1, 1, "none")],
    ),
    (
        "the aggregator was started again while working",
        [FIRST, TRY, plan(2, 1, "none"), DID, plan(2, 1, "send")],
    ),
    (
        "the aggregator was started again and lost an update",
        [FIRST, *DONE, plan(2, 1, "decline failed"), plan(2, 1, "work", attempt=1), *DONE],
    ),
    (
        "two plans of two campaigns in turn",
        [
            plan(1, 4, "work", attempt=8),
            *DONE,
            plan(1, 1, "work", attempt=9, run="s"),
            *DONE,
            *[
                plan(1, 4, "none", attempt=8),
                plan(1, 1, "none", attempt=9, run="s"),
            ]
            * 2,
            plan(1, 5, "work", attempt=10),
        ],
    ),
    (
        "two plans of two campaigns in turn while one is in work",
        [
            plan(1, 4, "work", attempt=8),
            TRY,
            plan(1, 1, "work", attempt=9, run="s"),
            TRY,
            plan(1, 4, "none", attempt=8),
            DID,
            plan(1, 4, "none", attempt=8),
            plan(1, 1, "send", attempt=9, run="s"),
        ],
    ),
    (
        "a plan that every start of the aggregator has repeated, after it was answered",
        [
            plan(1, 4, "work", attempt=8),
            TRY,
            plan(2, 4, "none", attempt=8),
            DID,
            ACKNOWLEDGED,
            plan(3, 4, "decline failed", attempt=8),
            plan(3, 4, "none", attempt=8),
            plan(4, 4, "decline failed", attempt=8),
            plan(3, 4, "decline stale", attempt=8),
            plan(4, 1, "work", attempt=9, run="s"),
            plan(4, 4, "none", attempt=8),
        ],
    ),
    (
        "plans of many campaigns, each of them again",
        [
            *[
                step
                for n in range(1, 9)
                for step in (plan(1, 1, "work", attempt=n, run=f"r{n}"), *DONE)
            ],
            *[plan(1, 1, "none", attempt=n, run=f"r{n}") for n in range(1, 9)],
        ],
    ),
    (
        "a backup two rounds old",
        [plan(1, 3, "work"), *DONE, plan(2, 1, "work"), *DONE, plan(2, 2, "work"), *DONE],
    ),
    (
        "a backup, and a clock that went back",
        [plan(5, 3, "work"), *DONE, plan(4, 1, "decline stale"), plan(6, 1, "work"), *DONE],
    ),
    (
        "an epoch that is over",
        [
            plan(5, 3, "work"),
            plan(4, 4, "decline stale"),
            plan(4, 1, "decline stale", run="s"),
            *DONE,
        ],
    ),
    (
        "another run",
        [
            plan(1, 9, "work"),
            *DONE,
            plan(2, 1, "work", run="s"),
            *DONE,
            plan(2, 2, "work", run="s"),
        ],
    ),
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
        [
            plan(1, 1, "decline expired", now_s=1001.0),
            plan(1, 1, "decline expired", now_s=1002.0),
            plan(1, 2, "work"),
        ],
    ),
    ("its time is over now", [plan(1, 1, "work", now_s=1000.0)]),
    (
        "declined",
        [
            FIRST,
            TRY,
            event("declined", "decline policy", reason="policy"),
            plan(1, 1, "decline policy"),
            plan(1, 2, "work"),
        ],
    ),
    (
        "declined, and the aggregator was started again",
        [FIRST, event("declined", "decline data", reason="data"), plan(2, 1, "work")],
    ),
    (
        "the client is killed in the midst of the work, and not before or after it",
        [
            event("client start"),
            FIRST,
            event("client start"),
            TRY,
            event("client start", "killed"),
            event("client start"),
            TRY,
            further(3),
            event("client start", "killed"),
            TRY,
            event("stopped"),
            event("client start"),
            TRY,
            plan(1, 2, "work"),
            event("client start"),
            TRY,
            DID,
            event("client start"),
            ACKNOWLEDGED,
            event("client start"),
        ],
    ),
    (
        "work that ends the client",
        [
            FIRST,
            *[TRY] * 5,
            event("start", "decline quarantined"),
            plan(1, 1, "decline quarantined"),
            plan(1, 2, "work"),
            TRY,
        ],
    ),
    (
        "work that ends the client but comes further each time",
        [FIRST, *[step for n in range(1, 8) for step in (TRY, further(n))], *DONE],
    ),
    (
        "work that ends the client at one place, wherever it began",
        [
            FIRST,
            TRY,
            further(9),
            *[TRY, further(4), TRY, further(9)] * 2,
            TRY,
            event("start", "decline quarantined"),
        ],
    ),
    (
        "work that goes on from further than it was noted to have come",
        [FIRST, *[TRY] * 4, event("resumed", runs=9), *[TRY, further(9)] * 4, OVER],
    ),
    (
        "work that comes further is a new plan's alone",
        [FIRST, TRY, further(9), plan(1, 2, "work"), *[TRY, further(3)] * 2, *[TRY] * 4, OVER],
    ),
    ("work that is stopped in good order", [FIRST, *[TRY, event("stopped")] * 7, *DONE]),
    (
        "a finished run",
        [
            plan(2, 1, "work"),
            *DONE,
            event("finish", "try", epoch=2, number=1, offered="a"),
            plan(3, 1, "work", run="s"),
        ],
    ),
    (
        "a finish of an epoch that is over",
        [
            event("finish", "try", epoch=3, number=1, offered="a"),
            event("finish", epoch=2, number=2, offered="b"),
            event("finish", "try", epoch=3, number=2, offered="c"),
        ],
    ),
    (
        "a finish while working",
        [
            FIRST,
            TRY,
            event("finish", "try", epoch=1, number=1, offered="a"),
            DID,
            plan(1, 1, "none"),
        ],
    ),
    (
        "a finish of another run while working",
        [
            FIRST,
            TRY,
            event("finish", epoch=1, offered="a", run="s", releases=True),
            DID,
            plan(1, 1, "send"),
            ACKNOWLEDGED,
        ],
    ),
    (
        "a finish beside releases, while working",
        [FIRST, TRY, event("finish", epoch=1, offered="a", releases=True), DID, plan(1, 1, "none")],
    ),
    (
        "a release",
        [
            release(1, "a", "try"),
            event("taken"),
            report(1, 1),
            release(1, "a"),
            release(2, "b", "try"),
            report(1, 2),
        ],
    ),
    (
        "a release twice",
        [release(3, "a", "try"), release(3, "b"), event("taken"), release(3, "a"), report(3, 3)],
    ),
    (
        "a release that comes late",
        [release(3, "a", "try"), event("taken"), release(2, "b"), report(3, 3)],
    ),
    ("back to an older model", [*taken(1, "a"), *taken(2, "b"), *taken(3, "a"), report(3, 3)]),
    (
        "the same model under another number",
        [*taken(1, "a"), release(2, "a", "try"), event("taken"), report(2, 2)],
    ),
    (
        "a release of an epoch that is over",
        [
            *taken(1, "a", epoch=5),
            release(2, "b", epoch=4),
            report(1, 1),
            release(2, "b", "try", epoch=5),
        ],
    ),
    (
        "a release that fails",
        [
            *taken(1, "a"),
            release(2, "b", "try"),
            event("failed"),
            report(1, 2, "failed"),
            release(2, "b"),
        ],
    ),
    (
        "what was in the way of a release has passed",
        [
            *taken(1, "a"),
            release(2, "b", "try"),
            event("failed"),
            event("again", "try"),
            event("failed"),
            report(1, 2, "failed"),
            event("again", "try"),
            report(1, 2, "failed"),
            event("try", "try"),
            event("taken"),
            report(2, 2),
            event("again"),
        ],
    ),
    (
        "a model of a finished run that fails is tried again, but not because it is offered again",
        [
            event("finish", "try", epoch=2, number=1, offered="a"),
            event("failed"),
            event("finish", epoch=2, number=2, offered="a"),
            event("again", "try"),
            event("taken"),
        ],
    ),
    (
        "the release after one that failed",
        [*taken(1, "a"), release(2, "b", "try"), event("failed"), *taken(3, "b"), report(3, 3)],
    ),
    (
        "a release that ends the client",
        [
            release(1, "a", "try"),
            *[event("try", "try")] * 5,
            event("try"),
            report(0, 1, "failed"),
            event("again"),
            release(2, "b", "try"),
        ],
    ),
    (
        "taking a release that is broken off in good order",
        [release(1, "a", "try"), *[event("try", "try"), event("broken off")] * 7],
    ),
    (
        "a release while working",
        [FIRST, TRY, release(1, "a", "try"), event("taken"), DID, ACKNOWLEDGED, report(1, 1)],
    ),
    (
        "a finished run after a release",
        [
            *taken(1, "a"),
            *finished(2, "b"),
            report(0, 2),
        ],
    ),
    (
        "an old finish again, after that of another run",
        [
            *finished(1, "a"),
            *finished(2, "b", run="s"),
            event("finish", epoch=2, number=1, offered="a"),
            event("finish", epoch=2, number=2, offered="b", run="s"),
            report(0, 2),
            *finished(3, "a"),
            report(0, 3),
        ],
    ),
    (
        "an old finish again, after a release, and an old release after a finish",
        [
            *finished(1, "a"),
            *taken(3, "b", epoch=2),
            event("finish", epoch=2, number=1, offered="a"),
            event("finish", epoch=2, number=2, offered="c", run="s"),
            *finished(5, "d", run="s"),
            release(4, "c", epoch=2),
            report(0, 5),
        ],
    ),
    (
        "a finished run that fails, and again with the same number",
        [
            event("finish", "try", epoch=2, number=1, offered="a"),
            event("failed"),
            report(0, 1, "failed"),
            event("finish", epoch=3, number=1, offered="a"),
            report(0, 1, "failed"),
        ],
    ),
    (
        "a finished run with the model that is released",
        [*taken(1, "a"), event("finish", epoch=2, number=2, offered="a"), report(1, 2)],
    ),
    (
        "what is kept of a model is used with it, and with no other one",
        [
            kept("a", "c"),
            *taken(1, "a"),
            report(1, 1, used="c"),
            *taken(2, "b"),
            report(2, 2, alone=True),
            *taken(3, "a"),
            report(3, 3, used="c"),
        ],
    ),
    (
        "a run is finished twice with one model, and keeps something else of it",
        [
            kept("a", "c"),
            *finished(1, "a"),
            kept("a", "d", "try"),
            event("taken"),
            event("finish", epoch=2, number=2, offered="a"),
            report(0, 2, used="d"),
        ],
    ),
    (
        "a release comes before the device keeps something of it",
        [*taken(1, "a"), kept("a", "c", "try"), event("taken"), report(1, 1, used="c")],
    ),
    (
        "what is kept of another model than that in use waits for it",
        [*taken(1, "a"), kept("b", "c"), *taken(2, "b"), report(2, 2, used="c")],
    ),
    (
        "what is kept of the model in use is kept of newer ones as well",
        [
            kept("a", "1"),
            *taken(1, "a"),
            *[kept(of, of) for of in "bcde"],
            report(1, 1, used="1"),
            *taken(2, "b"),
            report(2, 2, alone=True),
        ],
    ),
    (
        "what is said to be alone is the model in use, also where another one failed or is not "
        "tried yet",
        [
            kept("a", "c"),
            *taken(1, "b"),
            release(2, "a", "try"),
            report(1, 2, alone=True),
            event("failed"),
            report(1, 2, "failed", alone=True),
            *taken(3, "a"),
            report(3, 3, used="c"),
            release(4, "b", "try"),
            event("failed"),
            report(3, 4, "failed", used="c"),
        ],
    ),
    (
        "what is kept of another model after a release is not in use",
        [*taken(1, "a"), report(1, 1), kept("b", "c"), report(1, 1, alone=True)],
    ),
    (
        "what is kept of a model that failed is not tried before that is",
        [
            *taken(1, "a"),
            release(2, "b", "try"),
            event("failed"),
            kept("b", "c"),
            report(1, 2, "failed", alone=True),
        ],
    ),
    (
        "back to the model before, whose successor is not taken again, and forward to it",
        [
            *taken(1, "a"),
            *taken(2, "b"),
            event("back"),
            report(1, 2, "worse"),
            release(2, "b"),
            event("again"),
            event("back"),
            report(2, 2),
            event("back"),
            *taken(3, "c"),
            report(3, 3),
            event("back"),
            report(1, 3, "worse"),
        ],
    ),
    (
        "back to what was kept before of the same model, until something newer is kept of it",
        [
            *taken(1, "a"),
            kept("a", "c", "try"),
            event("taken"),
            event("back"),
            report(1, 1, alone=True),
            kept("a", "d", "try"),
            event("taken"),
            report(1, 1, used="d"),
            event("back"),
            report(1, 1, alone=True),
        ],
    ),
    (
        "back from the model of a finished run, and that run is finished again",
        [
            *finished(1, "a"),
            *finished(2, "b", run="s"),
            event("back"),
            report(0, 2, "worse"),
            event("finish", epoch=2, number=3, offered="b", run="s"),
            report(0, 3, "worse"),
            *finished(4, "a"),
            report(0, 4),
        ],
    ),
]
"""A name and its steps."""
OFFERED = {
    "back to the model before, whose successor is not taken again, and forward to it": "c",
    "back to what was kept before of the same model, until something newer is kept of it": "a",
    "back from the model of a finished run, and that run is finished again": "a",
    "a finished run": "a",
    "a finish of an epoch that is over": "c",
    "a finish while working": "a",
    "a release": "b",
    "a release twice": "a",
    "a release that comes late": "a",
    "back to an older model": "a",
    "the same model under another number": "a",
    "a release of an epoch that is over": "b",
    "a release that fails": "b",
    "what was in the way of a release has passed": "b",
    "a model of a finished run that fails is tried again, but not because it is offered again": "a",
    "the release after one that failed": "b",
    "a release that ends the client": "b",
    "taking a release that is broken off in good order": "a",
    "a release while working": "a",
    "a finished run after a release": "b",
    "an old finish again, after that of another run": "a",
    "an old finish again, after a release, and an old release after a finish": "d",
    "a finished run that fails, and again with the same number": "a",
    "a finished run with the model that is released": "a",
    "what is kept of a model is used with it, and with no other one": "a",
    "a run is finished twice with one model, and keeps something else of it": "a",
    "a release comes before the device keeps something of it": "a",
    "what is kept of another model than that in use waits for it": "b",
    "what is kept of the model in use is kept of newer ones as well": "b",
    (
        "what is said to be alone is the model in use, also where another one failed or is not "
        "tried yet"
    ): "b",
    "what is kept of another model after a release is not in use": "a",
    "what is kept of a model that failed is not tried before that is": "b",
}
"""Last offered model of each case, if there was one: one hexadecimal digit."""


def text() -> str:
    """The file, a step a line."""
    scenarios = []
    for name, steps in SCENARIOS:
        rows = ",\n   ".join(
            json.dumps({"event": kind, **arguments, "action": action})
            for kind, arguments, action in steps
        )
        scenarios.append(
            f'  {{"name": {json.dumps(name)}, "offered": {json.dumps(OFFERED.get(name, ""))}, '
            f'"steps": [\n   {rows}\n  ]}}'
        )
    return "[\n" + ",\n".join(scenarios) + "\n]\n"
