"""Gamma by its equations, and that it falls when clients are mixed; skew of labels and sizes by
hand."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import sqrtm

from edge_client.core.ports import Windows
from simulation.datasets.catalog import load
from simulation.datasets.pool import Pool
from simulation.datasets.windows import FleetData
from simulation.heterogeneity import gamma, label_skew, measure, squared_frechet
from simulation.partition import partition, read_partition
from tests.support.fleets import synthetic_fleet
from wire.bundle import Window

MNIST = Path(os.environ.get("SHOAL_DATA", "/nonexistent")) / "mnist" / "mnist.npz"
SHUFFLES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def blobs(train: int = 3000) -> Pool:
    """Two classes that are wide in two directions and flat in the others."""
    rng = np.random.default_rng(0)
    parts: list[np.ndarray] = []
    for count in (train, 300):
        y = np.arange(count) % 2
        wide = rng.normal(0, 5, (count, 2, 1)) + y[:, None, None]
        parts += [
            np.concatenate(
                [wide + 0.1 * rng.normal(size=(count, 2, 4)), rng.normal(size=(count, 1, 4))],
                axis=1,
            ),
            y,
        ]
    parts[0], parts[2] = parts[0].astype(np.float32), parts[2].astype(np.float32)
    return Pool("blobs", Window(("a", "b", "c"), 4, 4), ("one", "two"), *parts)


def test_frechet_distance_of_one_dimension_by_hand() -> None:
    found = squared_frechet(np.array([1.0]), np.array([[4.0]]), np.array([-2.0]), np.array([[9.0]]))
    assert float(found) == pytest.approx(9 + (2 - 3) ** 2, rel=1e-4)


@given(seed=st.integers(0, 2**32), size=st.integers(1, 6))
def test_frechet_distance_equals_equation_2_with_a_matrix_root(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    (mean_1, mean_2), halves = rng.normal(size=(2, size)), rng.normal(size=(2, size, size))
    first, second = (h @ h.T + 0.1 * np.eye(size) for h in halves)
    expected = np.square(mean_1 - mean_2).sum() + np.trace(
        first + second - 2 * sqrtm(first @ second).real
    )
    assert float(squared_frechet(mean_1, first, mean_2, second)) == pytest.approx(
        expected, rel=1e-3, abs=1e-3
    )
    assert float(squared_frechet(mean_1, first, mean_1, first)) == pytest.approx(0, abs=1e-4)


def test_gamma_equals_equation_3_by_pooling_the_others() -> None:
    rng = np.random.default_rng(0)
    clients = [rng.normal(k, 1 + k, (20 + 5 * k, 3)) for k in range(4)]
    expected = []
    for k in range(4):
        others = np.concatenate([z for i, z in enumerate(clients) if i != k])
        moments = [(z.mean(0), np.cov(z.T)) for z in (clients[k], others)]
        expected.append(float(squared_frechet(*moments[0], *moments[1])))
    assert gamma(clients) == pytest.approx(np.mean(expected), rel=1e-9)


def test_gamma_of_nothing_to_compare() -> None:
    one = np.random.default_rng(0).normal(size=(30, 3))
    assert gamma([]) == gamma([one]) == gamma([one, one[:0]]) == 0
    assert gamma([one, one]) == pytest.approx(0, abs=1e-9)
    assert np.isfinite(gamma([one[:1], one[1:2], one]))


def test_gamma_falls_monotonically_with_shuffling() -> None:
    values = [
        measure(partition(blobs(), read_partition(f"embedding:shuffle={s}:devices=5"), 0))["gamma"]
        for s in SHUFFLES
    ]
    assert values == sorted(values, reverse=True)
    assert values[0] > 20 * values[-1]


@pytest.mark.full
@pytest.mark.skipif(
    not MNIST.exists(),
    reason="SHOAL_DATA names no folder with mnist/mnist.npz; that would run this",
)
def test_gamma_falls_monotonically_with_shuffling_on_mnist() -> None:
    pool = load("mnist")
    assert isinstance(pool, Pool)
    pool = replace(pool, train_x=pool.train_x[:5000], train_y=pool.train_y[:5000])
    values = [
        measure(partition(pool, read_partition(f"embedding:shuffle={s}"), 0))["gamma"]
        for s in SHUFFLES[::2] + SHUFFLES[-1:]
    ]
    assert values == sorted(values, reverse=True)
    assert values[0] > 5 * values[-1]


def test_label_skew_by_hand() -> None:
    zeros, ones = np.zeros(10, np.int64), np.ones(10, np.int64)
    assert label_skew([zeros, zeros], 2) == 0
    assert label_skew([zeros, ones], 2) == pytest.approx(0.5)
    assert label_skew([np.full(5, c) for c in range(10)], 10) == pytest.approx(0.9)
    assert label_skew([np.array([0, 0, 0, 1]), np.array([0, 1, 1, 1])], 2) == pytest.approx(0.25)


def test_example_imbalance_by_hand() -> None:
    fleet = synthetic_fleet(2)
    windows = fleet.devices["d0"]
    cut = replace(windows, train_x=windows.train_x[:20], train_y=windows.train_y[:20])
    assert measure(fleet)["example_imbalance"] == 0
    assert measure(replace(fleet, devices={"d0": cut, "d1": fleet.devices["d1"]}))[
        "example_imbalance"
    ] == pytest.approx(10 / 30)


def test_a_shift_between_devices_is_seen() -> None:
    assert measure(synthetic_fleet(shift=2.0))["gamma"] > 2 * measure(synthetic_fleet())["gamma"]


def test_devices_without_training_examples_do_not_count() -> None:
    fleet = synthetic_fleet()
    windows = fleet.devices["d0"]
    empty = Windows(windows.train_x[:0], windows.train_y[:0], windows.test_x, windows.test_y)
    found = measure(replace(fleet, devices={**fleet.devices, "d0": empty}))
    assert found["gamma"] > 0
    assert measure(FleetData("none", fleet.window, fleet.classes, {"d0": empty})) == {
        "gamma": 0.0,
        "label_skew": 0.0,
        "example_imbalance": 0.0,
    }


def test_an_embedding_of_ones_own() -> None:
    fleet = synthetic_fleet(shift=3.0)
    found = measure(fleet, lambda x: x.mean((1, 2), keepdims=False)[:, None])["gamma"]
    assert found == pytest.approx(
        2 * 4, rel=0.5
    )  # pairs of devices 3 apart: own mean to that of the others is 2
