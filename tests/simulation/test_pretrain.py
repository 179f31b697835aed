"""An extractor that was trained on other data before the first round."""

from pathlib import Path

import numpy as np
import pytest
import torch

from algorithms.composition import read_algorithm
from simulation.objective import objective_for_fleet
from simulation.pretrain import pretrained_extractor
from simulation.settings import SimulationSettings
from simulation.simulate import simulate
from tests.support.fleets import synthetic_fleet
from tests.support.known import known
from wire.errors import DataError


@pytest.fixture
def other(tmp_path: Path) -> str:
    windows = synthetic_fleet(1, num_windows=60, seed=9).devices["d0"]
    np.savez(tmp_path / "other.npz", X=windows.train_x, y=windows.train_y)
    return str(tmp_path / "other.npz")


def test_the_objective_starts_from_the_extractor_and_a_fresh_head(other: str) -> None:
    data = synthetic_fleet(2)
    extractor = pretrained_extractor("har-cnn", data.window, other, 3)
    made = objective_for_fleet(data, read_algorithm("fedavg"), 3, pretrain=other).model
    for name, value in extractor.state_dict().items():
        assert torch.equal(made.extractor.state_dict()[name], value)
    plain = objective_for_fleet(data, read_algorithm("fedavg"), 3).model
    assert torch.equal(made.linear_head("made").weight, plain.linear_head("plain").weight)
    assert not torch.equal(
        made.extractor.state_dict()["conv1.weight"], plain.extractor.state_dict()["conv1.weight"]
    )


def test_cgau_learns_on_a_frozen_extractor_that_knows_something(other: str) -> None:
    data = synthetic_fleet(3)
    summary = simulate(
        data,
        SimulationSettings(read_algorithm("cgau:units=16"), 15, hyper={"lr": 0.05}, pretrain=other),
    ).summary
    assert known(summary.accuracy.mean) > 0.6
    bundle_bytes = summary.bytes.up / (3 * 15)
    assert bundle_bytes < 4 * (
        16 * 512 * 2 + 4000
    )  # two gated layers and a head leave the device, the extractor does not


def test_examples_of_another_shape_are_one_clear_error() -> None:
    with pytest.raises(
        DataError,
        match=r"--pretrain watch: examples must have the fleet's shape \(2, 32\), got \(6, 128\)",
    ):
        objective_for_fleet(synthetic_fleet(2), read_algorithm("cgau"), 0, pretrain="watch")
