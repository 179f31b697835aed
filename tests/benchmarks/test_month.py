"""The month of a device: its windows by day, and the table."""

import numpy as np

from benchmarks.month import (
    DAYS,
    PASSED,
    STRETCH,
    STRETCHES,
    TURNED,
    WAYS,
    accuracies,
    first_of,
    recorded,
    text,
    turned,
    windows_of,
)
from edge_client.core.ports import Windows
from wire.arrays.tensors import Array


def person(value: float, classes: int = 3) -> Windows:
    """Return the windows of a person, whose second axis has this value."""
    y = np.repeat(np.arange(classes), 10)
    x = np.zeros((len(y), 6, 8), np.float32)
    x[:, 1::3] = value
    return Windows(x, y, x[::5], y[::5])


def test_four_turns_are_none_and_every_turn_keeps_the_third_axis() -> None:
    x = np.random.default_rng(0).normal(size=(4, 6, 8)).astype(np.float32)
    once = turned(x)
    assert np.array_equal(once[:, 2::3], x[:, 2::3])
    assert np.array_equal(turned(turned(turned(once))), x)
    assert not np.array_equal(turned(once), x)


def test_a_day_adds_windows_and_changes_none_of_those_before() -> None:
    people = person(1.0), person(2.0)
    days = recorded(people, [0])
    assert [len(y) for _, y, _ in days] == [STRETCH] * DAYS
    whole = windows_of(people, days)
    for day in (1, TURNED, PASSED):
        part = windows_of(people, days[:day])
        assert np.array_equal(part.train_x, whole.train_x[: part.num_train])
        assert np.array_equal(part.unlabelled_x, whole.unlabelled_x[: part.num_unlabelled])
        assert part.num_unlabelled == day * STRETCH * (STRETCHES - 1)
    axes = whole.train_x.reshape(-1, STRETCH, 6, 8)[:, 0, :2, 0].tolist()
    quiet = PASSED - TURNED
    assert axes == ([[0, 1]] * (TURNED - 1) + [[-1, 0]] * quiet + [[0, 2]] * (DAYS - PASSED + 1))


def test_the_first_day_is_that_of_the_change_or_the_first_that_does_not_fit_those_before() -> None:
    rng = np.random.default_rng(0)

    def day(scale: float) -> tuple[Array, Array, Array]:
        x = scale * rng.normal(size=(32, 3, 8)).astype(np.float32)
        return x[:4], np.zeros(4, np.int64), x[4:]

    days = [day(5.0 if 12 <= d < 25 else 1.0) for d in range(1, DAYS + 1)]
    firsts = {way: [first_of(way, days[:n]) for n in (9, 11, 12, 24, 25, DAYS)] for way in WAYS}
    assert firsts["product"] == [0] * 6
    assert firsts["since"] == [0, 10, 10, 20, 20, 20]
    assert firsts["drift"] == [0, 0, 11, 11, 24, 24]


def test_each_phase_has_its_own_accuracy() -> None:
    own, other = person(1.0), person(2.0)
    windows = windows_of((own, other), recorded((own, other), [0])[:1])
    answers = np.eye(3, dtype=np.float32)[windows.test_y]
    answers[own.num_test : 2 * own.num_test] = answers[own.num_test : 2 * own.num_test, ::-1]
    assert accuracies(answers, (own, other)) == [1.0, 1 / 3, 1.0]


def test_the_table_has_means_of_days_and_phases() -> None:
    rows = [
        {"day": day, "frozen": 0.5, "product": day / DAYS, "since": 1.0, "drift": 0.0}
        for day in range(1, DAYS + 1)
    ]
    lines = text({"machine": "m", "runs": {"watch-0": rows}}).splitlines()
    for more in ("", " 100.0 | 0.0 |"):
        assert f"| watch | 28 | 50.0 | 100.0 |{more}" in lines
        assert f"| watch | {PASSED} to {DAYS}, another person | 50.0 | 87.5 |{more}" in lines
