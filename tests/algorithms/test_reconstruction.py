"""Windows that are given back: learned without labels, on every backend as torch has it, or refused
by name."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import shoal
from algorithms.composition import read_algorithm
from algorithms.tasks.reconstruction import Reconstruction
from edge_client.core.ports import Windows
from export.describe import describe_bundle, example_inputs, named
from export.parity import check_parity
from export.publish import publish
from simulation.contract.rounds import small
from simulation.datasets.catalog import load_data
from simulation.datasets.windows import FleetData
from simulation.engine.options import EngineOptions
from simulation.local.fleet import write_device_folder
from simulation.objective import objective_for_fleet
from simulation.settings import BackendName, SimulationSettings
from simulation.simulate import SimulationResult, simulate
from tests.support.bundles import some_graphs
from tests.support.fleets import synthetic_fleet
from tests.support.known import known
from tests.support.labels import nobody_labelled
from tests.support.objectives import OBJECTIVES
from wire.arrays import names
from wire.errors import ConfigError, DataError
from wire.identity.keys import new_key

LEARNS = "fedavg+adam:lr=0.003+reconstruction:tolerance=0.5"
OWN_LOSS = ("fedrod", "fedpcl", "fedgen")
"""Objectives that train by classes."""


def ran(
    algorithm: str,
    fleet: FleetData,
    backend: BackendName = "auto",
    rounds: int = 2,
    model: str = "",
) -> SimulationResult:
    options = (
        EngineOptions(backend, device="cpu") if backend == "batched" else EngineOptions(backend)
    )
    return simulate(
        fleet, SimulationSettings(read_algorithm(algorithm), rounds, model=model), engine=options
    )


def test_it_learns_without_labels_what_is_usual_and_tells_what_is_not() -> None:
    fleet = nobody_labelled(synthetic_fleet(3, num_windows=200))
    before, after = (
        shoal.simulate(fleet, algorithm=LEARNS, rounds=rounds, local_epochs=4) for rounds in (1, 12)
    )
    losses = [
        [known(device.loss) for device in run.summary.devices.values()] for run in (before, after)
    ]
    assert np.mean(losses[1]) < 0.8 * np.mean(losses[0])
    usual = fleet.devices["d0"].unlabelled_x
    jolted = usual + 3 * fleet.channel_size()[:, None] * np.sign(np.sin(np.arange(usual.shape[2])))
    scores, odd = (after.predict(x, device="d0") for x in (usual, jolted.astype(np.float32)))
    assert scores.shape == (len(usual), 1)
    assert (odd > np.quantile(scores, 0.99)).all(), "what the fleet has never met stands out"
    assert "at most 0.5" in after.summary.accuracy_is


def test_the_step_and_the_answers_are_those_of_plain_torch() -> None:
    fleet = synthetic_fleet(1)
    objective = objective_for_fleet(
        fleet, read_algorithm("fedavg:lr=0.1:momentum=0+reconstruction:tolerance=0.7"), 0
    )
    inputs = example_inputs(objective, fleet.window.shape)
    weights = {
        key: value.clone().requires_grad_()
        for key, value in objective.initial().items()
        if key.startswith("shared/")
    }
    others = {
        names.name_of(k): v for k, v in objective.initial().items() if k.startswith("statistic/")
    }
    model = objective.model.train()
    state = {names.name_of(k): v for k, v in weights.items()} | others
    outputs = torch.func.functional_call(model, state, inputs[names.X])
    target = (inputs[names.X] / torch.from_numpy(fleet.channel_size())[:, None]).flatten(1)
    each = (outputs - target).square().mean(1)
    gradients = torch.autograd.grad(each.mean(), list(weights.values()))
    made = named(objective.graphs()["step"])(inputs)
    for (key, value), gradient in zip(weights.items(), gradients, strict=True):
        torch.testing.assert_close(
            made[names.following(key)], value - 0.1 * gradient, atol=1e-5, rtol=1e-5
        )
    assert float(made[names.NUM_CORRECT]) == float((each <= 0.7).sum())
    answered = named(objective.graphs()["predict"])(inputs)[names.PROBABILITIES]
    evaluated = named(objective.graphs()["evaluate"])(inputs)
    assert answered.shape == (len(target), 1)
    torch.testing.assert_close(answered.sum(), evaluated[names.LOSS_SUM])


@pytest.mark.parametrize("backend", ["batched", "messages"])
def test_every_backend_makes_the_same_steps(backend: BackendName) -> None:
    eager, other = (ran(LEARNS, synthetic_fleet(3), name) for name in ("eager", backend))
    for device_id, device in eager.summary.devices.items():
        assert known(other.summary.devices[device_id].loss) == pytest.approx(
            known(device.loss), rel=1e-3
        )


def test_labels_change_nothing_and_windows_without_one_are_trained_on() -> None:
    fleet = synthetic_fleet(3)

    def cut(w: Windows) -> Windows:
        return Windows(w.train_x[:40], w.train_y[:40], w.test_x, w.test_y, w.train_x[40:])

    known_ones, partly = (
        ran(LEARNS, fleet),
        ran(LEARNS, replace(fleet, devices={d: cut(w) for d, w in fleet.devices.items()})),
    )
    assert known_ones.summary.devices == partly.summary.devices


@pytest.mark.representatives("fedavg", "ditto", "fedgen")
@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_every_objective_trains_or_is_refused_by_name(name: str) -> None:
    algorithm = f"{small(name)}+reconstruction"
    if any(own in name for own in OWN_LOSS):
        with pytest.raises(
            ConfigError,
            match=r"has a loss of its own, and cannot use the task 'reconstruction",
        ):
            ran(algorithm, synthetic_fleet(3), rounds=1)
        return
    losses = [
        device.loss
        for device in ran(algorithm, synthetic_fleet(3), rounds=1).summary.devices.values()
    ]
    assert all(0 < known(loss) < 10 for loss in losses)


def test_groups_are_found_by_inputs_and_not_by_answers() -> None:
    fleet = synthetic_fleet(12)
    turned = set(sorted(fleet.devices)[6:])
    devices = {
        d: replace(w, train_x=4 - w.train_x, test_x=4 - w.test_x) if d in turned else w
        for d, w in fleet.devices.items()
    }
    summary = ran("distfl+reconstruction", replace(fleet, devices=devices)).summary
    groups = {
        device.group: {d for d, other in summary.devices.items() if other.group == device.group}
        for device in summary.devices.values()
    }
    assert sorted(map(sorted, groups.values())) == sorted(
        [sorted(turned), sorted(fleet.devices.keys() - turned)]
    )
    with pytest.raises(ConfigError, match=r"needs .* and a task with classes"):
        ran("distfl:signature=responses+reconstruction", fleet)


@pytest.mark.parametrize(
    ("algorithm", "told"),
    [
        (
            "fedavg+knn-per+reconstruction",
            "knn-per lets devices choose .*, and the task reconstruction cannot use them",
        ),
        ("fedavg+reconstruction:tolerance=0", "tolerance"),
        (
            "fedavg+classification+reconstruction",
            "classification and reconstruction are of one kind, task",
        ),
    ],
)
def test_what_does_not_fit_is_refused(algorithm: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        ran(algorithm, synthetic_fleet(2))


def test_a_result_says_errors_and_no_classes() -> None:
    result = shoal.simulate(synthetic_fleet(2), algorithm=LEARNS, rounds=1)
    x = result.data.devices["d0"].test_x
    torch.testing.assert_close(
        result.predict(x, device="d0"), result.outcome.predict("d0", x), atol=1e-5, rtol=1e-4
    )
    for asked in (lambda: result.macro_f1, lambda: result.predictions("d0"), result.confusion):
        with pytest.raises(
            ConfigError,
            match=r"needs a task of classification.*, got reconstruction, where `predict` answers "
            r"reconstruction",
        ):
            asked()


def test_a_folder_of_devices_without_labels_is_data_for_this_task_alone(tmp_path: Path) -> None:
    fleet = nobody_labelled(synthetic_fleet(3))
    for device_id in fleet.devices:
        write_device_folder(fleet, device_id, tmp_path / device_id)
        (tmp_path / device_id / "classes.txt").unlink(missing_ok=True)
        for name in ("train.npz", "test.npz"):
            (tmp_path / device_id / name).unlink(missing_ok=True)
    data = load_data(str(tmp_path))
    assert ran(LEARNS, data).summary.accuracy.mean is not None
    with pytest.raises(
        DataError, match=r"no window has a label. Add labels, or use a task that needs none"
    ):
        ran("fedavg", data)


@pytest.mark.slow
def test_graphs_on_a_device_are_those_of_eager_torch() -> None:
    fleet = synthetic_fleet(2)
    objective = some_graphs(
        objective_for_fleet(fleet, read_algorithm(LEARNS), 0), "step", "evaluate", "predict"
    )
    published = publish(
        objective, fleet.window, fleet.classes, fleet.sample(), new_key(), name="machines"
    )
    manifest = published.bundle.manifest
    assert (manifest.task, manifest.classes) == ("reconstruction", ("reconstruction_error",))
    assert check_parity(published.bundle, objective, *fleet.sample(), steps=5).step_error < 1e-4


def test_a_bundle_says_its_task_and_one_of_an_unknown_task_is_refused() -> None:
    fleet = synthetic_fleet(1)
    bundle = describe_bundle(
        objective_for_fleet(fleet, read_algorithm("fedavg"), 0),
        name="f",
        classes=fleet.classes,
        window=fleet.window,
    )
    assert bundle.manifest.task == "classification"
    assert (
        Reconstruction().accuracy == "windows given back with a mean squared error of at most 0.5"
    )
