"""The vectors of questions for labels, ``questions.json``: the activities that a filter follows in
the streams of ``stream.json``; which of them are long; which question is due at a time.
"""

import json

import msgspec
import numpy as np

from edge_client.core.questions import DAY_S, Question, due_question, question_of
from edge_client.core.stream import Activity, StreamFilter, StreamSums
from tests.wire import stream_vectors
from tests.wire.signed_vectors import VECTORS

FILE = VECTORS / "questions.json"
CLASSES = ("rest", "walking", "stairs", "läuft")
NOW_S = 1_800_000_000.0
Followed = list[tuple[Activity, StreamSums]]


def followed(case: dict[str, object]) -> Followed:
    """The activities of a stream of ``stream.json``, with the sums when each is over."""
    activities: Followed = []
    sums = StreamSums("b", float(str(case["stays"])), float(str(case["changes"])))
    stream = StreamFilter(
        sums, float(str(case["step_s"])), on_activity=lambda a: activities.append((a, stream.sums))
    )
    steps = case["steps"]
    assert isinstance(steps, list)
    for step in steps:
        list(stream.answer(step["begin_s"], np.array(step["p"], np.float32)))
    list(stream.end())
    return activities


def _long(windows: int, stays: float, changes: float, step_s: float, length_s: float) -> object:
    activity = Activity(NOW_S, NOW_S + (windows - 1) * step_s, windows, windows % 4)
    question = question_of(activity, StreamSums("b", stays, changes), CLASSES, length_s)
    sums = {"stays": stays, "changes": changes}
    row = {"activity": msgspec.to_builtins(activity), "length_s": length_s} | sums
    return row | {"question": msgspec.to_builtins(question)}


def _due(count: int, seed: int, last_s: float | None, most: int) -> object:
    rng = np.random.default_rng(seed)
    begins = NOW_S - 1.2 * DAY_S + np.sort(rng.integers(0, 125_000_000, count)) / 1000
    stretches = [
        Question(float(begin), float(begin) + 64.5 * windows, windows, CLASSES[windows % 4])
        for begin, windows in zip(begins, rng.integers(1, 200, count).tolist(), strict=True)
    ]
    due = due_question(stretches, last_s, most, NOW_S)
    row = {"stretches": msgspec.to_builtins(stretches), "last_s": last_s, "most_a_day": most}
    return row | {"now_s": NOW_S, "due": stretches.index(due) if due else None}


def text() -> str:
    """The file."""
    streams = [
        [msgspec.to_builtins(activity) for activity, _ in followed(case)]
        for case in json.loads(stream_vectors.text())
    ]
    long = [
        _long(windows, *sums, step_s, 2.56)
        for windows in (1, 9, 10, 24, 60, 100_000)
        for sums in ((0.0, 0.0), (9.0, 1.0), (900.0, 100.0), (300.0, 700.0))
        for step_s in (1.28, 7.0)
    ]
    last = (None, NOW_S - 1, NOW_S - 28_799.5, NOW_S - 28_800, NOW_S - 9 * DAY_S, NOW_S + 9 * DAY_S)
    due = [
        _due(count, seed, last_s, most)
        for seed, count in enumerate((0, 1, 12, 5, 30))
        for last_s in last
        for most in (0, 3)
    ]
    return json.dumps({"streams": streams, "long": long, "due": due}, ensure_ascii=False) + "\n"
