"""Reports of moved data: on the smartwatch set, whose people and arms are real."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from edge_client.live.drift import FEWEST, MOVED, distance, features, has_moved, some
from simulation.datasets.watch import load_watch
from tests.edge_client.board import RATE_HZ, T0_S, Board
from wire.arrays.tensors import Array


@pytest.fixture(scope="module")
def halves() -> dict[tuple[str, int], Array]:
    """Return the features of the windows of the first and the second half of each recording, by
    device and half."""
    found = {}
    for device_id, windows in load_watch().devices.items():
        parts: list[list[Array]] = [[], []]
        for label in np.unique(windows.train_y):
            x = np.concatenate(
                [windows.train_x[windows.train_y == label], windows.test_x[windows.test_y == label]]
            )
            parts[0].append(x[: len(x) // 2])
            parts[1].append(x[len(x) // 2 :])
        for half in (0, 1):
            found[device_id, half] = features(np.concatenate(parts[half]))
    return found


def test_two_halves_of_one_persons_recordings_are_no_alarm(
    halves: dict[tuple[str, int], Array],
) -> None:
    devices = sorted({device_id for device_id, _ in halves})
    assert len(devices) == 20
    assert max(distance(halves[d, 0], halves[d, 1]) for d in devices) < MOVED
    assert not any(has_moved(halves[d, 0], halves[d, 1]) for d in devices)


def test_another_person_and_another_arm_are_an_alarm(halves: dict[tuple[str, int], Array]) -> None:
    pairs = [(one, other) for one, other in product(halves, halves) if one[0] != other[0]]
    assert len(pairs) == 40 * 38
    assert min(distance(halves[one], halves[other]) for one, other in pairs) > MOVED


def test_chance_gives_a_distance_of_about_zero_at_any_size() -> None:
    rng = np.random.default_rng(0)
    for n, m in ((64, 64), (64, 256), (256, 256)):
        found = [distance(rng.normal(size=(n, 12)), rng.normal(size=(m, 12))) for _ in range(50)]
        assert abs(np.mean(found)) < 0.003
        assert max(found) < MOVED


def test_few_windows_have_not_moved() -> None:
    rng = np.random.default_rng(0)
    assert not has_moved(rng.normal(size=(FEWEST - 1, 4)), 9 + rng.normal(size=(256, 4)))
    assert has_moved(rng.normal(size=(FEWEST, 4)), 9 + rng.normal(size=(256, 4)))
    assert len(some(rng.normal(size=(1000, 4)))) == 256


def test_a_board_compares_what_came_since_its_survey_also_after_a_restart(tmp_path: Path) -> None:
    board, rng = Board(tmp_path), np.random.default_rng(0)
    at = 0

    def record(count: int, shift: float) -> None:
        nonlocal at
        from edge_client.data.recordings.resampling import Stretch

        board.ring.append(
            Stretch(
                T0_S + at / RATE_HZ,
                (rng.normal(size=(count, 2)) + shift).astype(np.float32),
                at == 0,
            )
        )
        board.ring.sync()
        at += count

    record(2000, 0.0)
    assert not board.data.look()
    board.data.surveyed()
    record(2000, 0.0)
    assert not board.data.look()
    board = Board(tmp_path)
    record(4100, 1.0)
    assert board.data.look()
    assert board.data.has_moved
    board.data.surveyed()
    assert not board.data.has_moved
    record(4100, 1.0)
    assert not board.data.look()
