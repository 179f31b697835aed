"""The month of a device: its windows by day, and the table."""

import numpy as np

from benchmarks.month import (
    DAYS,
    PASSED,
    STRETCH,
    STRETCHES,
    TURNED,
    accuracies,
    recorded,
    text,
    turned,
)
from edge_client.core.ports import Windows


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
    whole, counts = recorded(people, DAYS, [0])
    assert counts == [STRETCH * day for day in range(1, DAYS + 1)]
    for day in (1, TURNED, PASSED):
        part, _ = recorded(people, day, [0])
        assert np.array_equal(part.train_x, whole.train_x[: part.num_train])
        assert np.array_equal(part.unlabelled_x, whole.unlabelled_x[: part.num_unlabelled])
        assert part.num_unlabelled == day * STRETCH * (STRETCHES - 1)
    axes = whole.train_x.reshape(-1, STRETCH, 6, 8)[:, 0, :2, 0].tolist()
    quiet = PASSED - TURNED
    assert axes == ([[0, 1]] * (TURNED - 1) + [[-1, 0]] * quiet + [[0, 2]] * (DAYS - PASSED + 1))


def test_each_phase_has_its_own_accuracy() -> None:
    own, other = person(1.0), person(2.0)
    windows, _ = recorded((own, other), 1, [0])
    answers = np.eye(3, dtype=np.float32)[windows.test_y]
    answers[own.num_test : 2 * own.num_test] = answers[own.num_test : 2 * own.num_test, ::-1]
    assert accuracies(answers, (own, other)) == [1.0, 1 / 3, 1.0]


def test_the_table_has_means_of_days_and_phases() -> None:
    rows = [{"day": day, "frozen": 0.5, "product": day / DAYS} for day in range(1, DAYS + 1)]
    lines = text({"machine": "m", "runs": {"watch-0": rows}}).splitlines()
    assert "| 28 | 50.0 | 100.0 |" in lines
    assert f"| {PASSED} to {DAYS}, another person | 50.0 | 87.5 |" in lines
