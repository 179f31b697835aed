"""The default algorithm: personal models, in the task of the data's labels."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import shoal
from algorithms.composition import read_algorithm
from export.describe import describe_bundle
from simulation.datasets.windows import FleetData, task_of_labels
from simulation.objective import objective_for_fleet, suited
from tests.support.fleets import synthetic_fleet
from tests.support.labels import quantities, relabelled, several_labels, steps
from wire.errors import DataError

FLEETS = {"multi-label": several_labels, "regression": quantities, "sequence": steps}


@pytest.mark.representatives("multi-label")
@pytest.mark.parametrize("task", FLEETS)
def test_devices_keep_what_serves_them_in_the_task_of_the_labels(task: str, tmp_path: Path) -> None:
    make: Callable[[FleetData], FleetData] = FLEETS[task]
    result = shoal.simulate(make(synthetic_fleet(3)), rounds=1, newcomers=1)
    summary = result.summary
    assert str(summary.algorithm) == f"personal+{task}"
    assert summary.personal_models is not None
    assert sum(summary.personal_models.candidates.values()) == len(summary.devices)
    models = [device.personal_model for device in summary.devices.values()]
    assert all(model and model.windows >= 3 for model in models)
    device = sorted(result.data.devices)[0]
    x = result.data.devices[device].test_x
    np.testing.assert_allclose(
        result.predict(x, device=device), result.outcome.predict(device, x), rtol=1e-4, atol=1e-5
    )
    assert [file for file in result.save(tmp_path) if device in file.name], (
        "what a device keeps is written too"
    )


def test_others_are_as_they_are_named() -> None:
    numbers, classes = quantities(synthetic_fleet(2)), synthetic_fleet(2)
    for name in ("fedavg", "personal:memory=16", "personal+reconstruction"):
        assert suited(read_algorithm(name), numbers) == read_algorithm(name)
    assert suited(read_algorithm("personal"), classes) == read_algorithm("personal")
    columns = relabelled(classes, ("a", "b", "c"), lambda y: np.eye(3, dtype=np.int64)[y])
    assert task_of_labels(columns) == "classification"
    with pytest.raises(DataError, match=r"these are a column for each class, y.argmax\(1\)"):
        shoal.simulate(columns, rounds=1)


def test_a_bundle_says_it_too() -> None:
    fleet = quantities(synthetic_fleet(2))
    objective = objective_for_fleet(fleet, suited(read_algorithm("personal"), fleet), 0)
    bundle = describe_bundle(objective, name="numbers", classes=fleet.classes, window=fleet.window)
    assert (bundle.manifest.algorithm, bundle.manifest.task) == (
        "fedavg+personal+regression",
        "regression",
    )
