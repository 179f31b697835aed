"""Quantities of a window: learned in the fleet's units, answered in the user's own, on every
backend as torch has it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import shoal
from algorithms.composition import read_algorithm
from algorithms.core.keys import Units
from algorithms.tasks.regression import Regression
from edge_client.commands.predict import told
from export.describe import example_inputs, named
from export.model_file import to_onnx_file
from export.parity import check_parity
from export.publish import publish
from export.runtimes import load_whole
from shoal.reports.words import verdict
from simulation.datasets.catalog import load_data
from simulation.local.fleet import write_device_folder
from simulation.objective import objective_for_fleet
from simulation.settings import BackendName
from tests.algorithms.task_cases import check_composed, ran, ran_alike
from tests.support.bundles import some_graphs
from tests.support.fleets import synthetic_fleet
from tests.support.known import known
from tests.support.labels import QUANTITIES, quantities, relabelled
from tests.support.objectives import OBJECTIVES
from wire.arrays import names
from wire.errors import ConfigError, DataError
from wire.identity.keys import new_key

ALGORITHM = "fedavg+regression"


def test_quantities_of_any_size_are_learned_and_told_in_their_own_units() -> None:
    result = shoal.simulate(
        quantities(synthetic_fleet(3, num_windows=90)),
        algorithm=ALGORITHM,
        rounds=12,
        local_epochs=2,
        newcomers=1,
    )
    assert known(result.accuracy.mean) > 0.5
    speed, height = result.mae["speed"], result.mae["height"]
    assert 0 < known(speed.mean) <= known(speed.worst) < 400, "of 1000 to 3000"
    assert 0 < known(height.mean) < 0.004, "of 0 to 0.01"
    device = sorted(result.data.devices)[0]
    windows = result.data.devices[device]
    said = result.predictions(device)
    np.testing.assert_allclose(result.predict(windows.test_x, device=device), said, rtol=1e-4)
    mae = np.abs(said - windows.test_y).mean(0)
    assert result.summary.devices[device].mae == pytest.approx(
        dict(zip(QUANTITIES, mae.tolist(), strict=True)), rel=1e-3, abs=1e-6
    )
    assert known(known(result.summary.newcomers).mae)["speed"].mean is not None
    assert "Mean absolute error of speed" in verdict(result.summary)
    assert "within 0.5 of its standard deviation" in result.summary.accuracy_is
    with pytest.raises(
        ConfigError,
        match="needs a task of classification or sequence or multi-label, got regression, where "
        "`predict` answers",
    ):
        _ = result.macro_f1


@given(st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
def test_another_unit_changes_no_loss_and_the_answers_with_it(factor: float, offset: float) -> None:
    rng = torch.Generator().manual_seed(0)
    y, logits = (torch.randn(9, 2, generator=rng) for _ in range(2))
    one, other = (
        Regression().in_units(Units((mean, 0.0), (size, 1.0)))
        for mean, size in ((0.0, 1.0), (offset, factor))
    )
    moved = torch.stack([y[:, 0] * factor + offset, y[:, 1]], dim=1)
    losses = [
        task.losses(logits, task.target(logits, labels))
        for task, labels in ((one, y), (other, moved))
    ]
    torch.testing.assert_close(*losses, rtol=1e-2, atol=1e-2 + 1e-5 * abs(offset) / factor * 10)
    torch.testing.assert_close(other.answer(logits, logits)[:, 0], logits[:, 0] * factor + offset)


def test_the_units_are_those_of_all_training_labels() -> None:
    fleet = quantities(synthetic_fleet(2))
    units = known(fleet.label_units())
    y = np.concatenate([w.train_y for w in fleet.devices.values()]).astype(np.float64)
    assert units.center == pytest.approx(y.mean(0).tolist())
    assert units.size == pytest.approx(y.std(0).tolist())
    same = relabelled(synthetic_fleet(1), ("value",), lambda y: np.ones((len(y), 1), np.float32))
    assert known(same.label_units()).size == (1.0,)
    assert synthetic_fleet(1).label_units() is None


def test_the_step_and_the_answers_are_those_of_plain_torch() -> None:
    fleet = quantities(synthetic_fleet(1))
    objective = objective_for_fleet(
        fleet, read_algorithm("fedavg:lr=0.1:momentum=0+regression:tolerance=0.7"), 0
    )
    inputs = example_inputs(objective, fleet.window.shape)
    inputs[names.Y] = torch.from_numpy(fleet.devices["d0"].train_y[: len(inputs[names.X])])
    weights = {
        key: value.clone().requires_grad_()
        for key, value in objective.initial().items()
        if key.startswith("shared/")
    }
    state = {names.name_of(k): v for k, v in weights.items()}
    state |= {
        names.name_of(k): v for k, v in objective.initial().items() if k.startswith("statistic/")
    }
    outputs = torch.func.functional_call(objective.model.train(), state, inputs[names.X])
    y = torch.from_numpy(fleet.devices["d0"].train_y).double()
    target = ((inputs[names.Y] - y.mean(0)) / y.std(0, correction=0)).float()
    loss = torch.nn.functional.mse_loss(outputs, target)
    made = named(objective.graphs()["step"])(inputs)
    for (key, value), gradient in zip(
        weights.items(), torch.autograd.grad(loss, list(weights.values())), strict=True
    ):
        torch.testing.assert_close(
            made[names.following(key)], value - 0.1 * gradient, atol=1e-5, rtol=1e-5
        )
    assert float(made[names.NUM_CORRECT]) == float(((outputs - target).abs() <= 0.7).all(1).sum())
    nobody = inputs | {names.Y: torch.full_like(inputs[names.Y], float("nan"))}
    assert float(named(objective.graphs()["evaluate"])(nobody)[names.LOSS_SUM]) == 0, (
        "windows without labels have no loss"
    )
    survey = named(objective.graphs()["survey"])(nobody)
    assert all(torch.isfinite(value).all() for value in survey.values())


@pytest.mark.parametrize("backend", ["batched", "messages"])
def test_every_backend_makes_the_same_steps(backend: BackendName) -> None:
    fleet = quantities(synthetic_fleet(2))
    eager, other = ran_alike(ALGORITHM, fleet, backend)
    for device_id, device in eager.summary.devices.items():
        assert other.summary.devices[device_id].mae == pytest.approx(known(device.mae), rel=1e-2)


@pytest.mark.representatives("fedavg", "ditto", "fedgen")
@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_every_objective_composes_or_is_refused_by_name(name: str) -> None:
    check_composed(name, "regression", 2)


def test_labels_of_another_task_are_refused() -> None:
    numbers = quantities(synthetic_fleet(2))
    with pytest.raises(
        DataError,
        match=r"y must be float32\[40, 3\] for regression, got int64\[40\]: these are classes.*, "
        r"or quantities, y.astype\(float\)",
    ):
        ran(ALGORITHM, synthetic_fleet(2))
    with pytest.raises(
        DataError,
        match=r"y must be int64\[40\] for classification, got float32\[40, 2\]: these are "
        r"quantities, of the task regression",
    ):
        ran("fedavg", numbers)
    for options, wrong in (
        (
            {"labels": 5},
            "labels must be all or none, because the labels of data .* are not classes, got 5",
        ),
        ({"attack": "label-flip"}, "attack.* labels of data .* are not classes"),
        ({"partition": "dirichlet"}, "partition.* labels of data .* are not classes"),
    ):
        with pytest.raises((ConfigError, DataError), match=wrong):
            shoal.simulate(numbers, algorithm=ALGORITHM, rounds=1, **options)
    with pytest.raises(ConfigError, match="tolerance"):
        read_algorithm("fedavg+regression:tolerance=0")


def test_files_and_arrays_of_quantities_are_read(tmp_path: Path) -> None:
    fleet = quantities(synthetic_fleet(2))
    for device_id in fleet.devices:
        write_device_folder(fleet, device_id, tmp_path / "folders" / device_id)
    np.savez(
        tmp_path / "folders" / "d1" / "test.npz",
        X=fleet.sample()[0][:0],
        y=fleet.sample()[1][:0, 0],
    )
    held = load_data(str(tmp_path / "folders"))
    assert held.devices["d1"].test_y.shape == (0, 2)
    assert (held.classes, held.devices["d0"].train_y.dtype) == (("0", "1"), np.dtype(np.float32))
    x, y = fleet.sample()
    np.savez(tmp_path / "one.npz", X=x, y=y[:, 0].astype(float), subject=np.arange(len(y)) % 2)
    own = load_data(str(tmp_path / "one.npz"))
    assert (own.classes, own.devices["s00"].train_y.shape) == (("value",), (15, 1))
    mapped = shoal.load({"a": (x, y), "b": (x, y)}, classes=QUANTITIES)
    assert mapped.devices["b"].train_y.tolist() == y[:30].tolist(), (
        "the last quarter is for testing"
    )
    broken = y.copy()
    broken[3, 1] = np.inf
    with pytest.raises(DataError, match="y must hold finite numbers, got inf at window 3"):
        shoal.load({"a": (x, broken)})


@pytest.mark.slow
def test_graphs_on_devices_and_files_of_models_are_those_of_eager_torch() -> None:
    fleet = quantities(synthetic_fleet(2))
    objective = some_graphs(
        objective_for_fleet(fleet, read_algorithm(ALGORITHM), 0),
        "step",
        "evaluate",
        "predict",
        "survey",
    )
    published = publish(
        objective, fleet.window, fleet.classes, fleet.sample(), new_key(), name="numbers"
    )
    manifest = published.bundle.manifest
    assert (manifest.task, manifest.classes, manifest.label) == (
        "regression",
        QUANTITIES,
        ("float32", (2,)),
    )
    assert check_parity(published.bundle, objective, *fleet.sample(), steps=5).step_error < 1e-4
    x = fleet.devices["d0"].test_x
    whole = load_whole(to_onnx_file(published.bundle, published.bundle.initial, {}))(x)
    answers = objective.graphs()["predict"](objective.initial(), {"x": torch.from_numpy(x)}, {})[
        names.PROBABILITIES
    ]
    np.testing.assert_allclose(whole, answers.detach().numpy(), rtol=1e-5)
    assert whole[:, 0].mean() > 100, "in the user's units"


def test_what_is_told_of_a_window_has_the_digits_that_there_are() -> None:
    assert told("regression", QUANTITIES, np.array([1234.5678, 1.25e-9], np.float32)) == {
        "speed": 1234.568,
        "height": 1.25e-9,
    }


def test_a_devices_own_model_tells_quantities_too() -> None:
    result = shoal.simulate(quantities(synthetic_fleet(2)), algorithm="apfl+regression", rounds=1)
    x = result.data.devices["d0"].test_x
    np.testing.assert_allclose(
        result.predict(x, device="d0"), result.outcome.predict("d0", x), rtol=1e-4
    )
