"""Several labels of a window: learned on every backend as torch has it, measured name by name, or
refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file

import shoal
from algorithms.composition import make_algorithm, read_algorithm
from edge_client.commands.predict import told
from edge_client.core.policy import reported_classes
from export.describe import example_inputs, named
from export.model_file import to_onnx_file
from export.parity import check_parity
from export.publish import publish
from export.runtimes import load_whole
from simulation.contract.rounds import small
from simulation.datasets.catalog import load_data
from simulation.local.fleet import write_device_folder
from simulation.objective import objective_for_fleet
from simulation.partition import partition, read_partition
from simulation.settings import BackendName
from tests.algorithms.task_cases import OWN_LOSS, check_composed, ran, ran_alike
from tests.support.bundles import some_graphs
from tests.support.fleets import synthetic_fleet
from tests.support.known import known
from tests.support.labels import NAMES, relabelled, several_labels
from tests.support.objectives import OBJECTIVES
from wire.arrays import names
from wire.errors import ConfigError, DataError
from wire.identity.keys import new_key
from wire.messages import Policy

ALGORITHM = "fedavg:lr=0.05+multi-label"


def test_it_learns_each_name_by_itself() -> None:
    result = shoal.simulate(
        several_labels(synthetic_fleet(3, num_windows=90)), algorithm=ALGORITHM, rounds=8
    )
    assert known(result.accuracy.mean) > 0.8
    assert known(result.macro_f1.mean) > 0.8
    assert known(result.auc.mean) > 0.95
    assert result.summary.accuracy_is == "windows of which every label is told rightly"
    windows = result.data.devices["d0"]
    answers = result.predict(windows.test_x, device="d0")
    said = result.predictions("d0")
    assert ((answers > 0) & (answers < 1)).all()
    assert (said == (answers >= 0.5)).all()
    assert result.summary.devices["d0"].accuracy == pytest.approx(
        (said == windows.test_y).all(1).mean()
    )
    with pytest.raises(
        ConfigError,
        match=r"confusion needs a task of classification or sequence, got multi-label, where "
        r"`predict` answers slow",
    ):
        result.confusion()


def test_the_step_and_the_answers_are_those_of_plain_torch() -> None:
    fleet = several_labels(synthetic_fleet(1))
    objective = objective_for_fleet(
        fleet, read_algorithm("fedavg:lr=0.1:momentum=0+multi-label"), 0
    )
    inputs = example_inputs(objective, fleet.window.shape)
    inputs[names.Y] = torch.from_numpy(fleet.devices["d0"].train_y[: len(inputs[names.X])])
    weights = {
        key: value.clone().requires_grad_()
        for key, value in objective.initial().items()
        if key.startswith("shared/")
    }
    others = {
        names.name_of(k): v for k, v in objective.initial().items() if k.startswith("statistic/")
    }
    outputs = torch.func.functional_call(
        objective.model.train(),
        {names.name_of(k): v for k, v in weights.items()} | others,
        inputs[names.X],
    )
    target = inputs[names.Y].float()
    loss = F.binary_cross_entropy(torch.sigmoid(outputs), target)
    made = named(objective.graphs()["step"])(inputs)
    for (key, value), gradient in zip(
        weights.items(), torch.autograd.grad(loss, list(weights.values())), strict=True
    ):
        torch.testing.assert_close(
            made[names.following(key)], value - 0.1 * gradient, atol=1e-5, rtol=1e-5
        )
    assert float(made[names.NUM_CORRECT]) == float(
        ((torch.sigmoid(outputs) >= 0.5) == (target == 1)).all(1).sum()
    )
    nobody = inputs | {names.Y: torch.full_like(inputs[names.Y], -1)}
    assert float(named(objective.graphs()["evaluate"])(nobody)[names.LOSS_SUM]) == 0, (
        "windows without labels have no loss"
    )


@pytest.mark.parametrize("backend", ["batched", "messages"])
def test_every_backend_makes_the_same_steps(backend: BackendName) -> None:
    fleet = several_labels(synthetic_fleet(2))
    eager, other = ran_alike(ALGORITHM, fleet, backend)
    for device_id, device in eager.summary.devices.items():
        assert other.summary.devices[device_id].auc == pytest.approx(device.auc, abs=0.05)


@pytest.mark.representatives("fedavg", "ditto", "fedgen")
@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_every_objective_composes_or_is_refused_by_name(name: str) -> None:
    if check_composed(name, "multi-label", 3):
        assert not make_algorithm(read_algorithm(f"{small(name)}+multi-label")).has_classes


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sorted(name for name in OBJECTIVES if not any(own in name for own in OWN_LOSS))
)
def test_every_objective_trains(name: str) -> None:
    summary = ran(
        f"{small(name)}+multi-label", several_labels(synthetic_fleet(3)), rounds=1
    ).summary
    assert all(0 < known(device.loss) < 10 for device in summary.devices.values())


def test_labels_of_another_task_are_refused() -> None:
    classes, several = synthetic_fleet(2), several_labels(synthetic_fleet(2))
    with pytest.raises(
        DataError,
        match=r"y must be int64\[40, 3\] for multi-label, got int64\[40\]: these are classes, one "
        r"for each window, of the task classification",
    ):
        ran(ALGORITHM, classes)
    with pytest.raises(
        DataError,
        match=r"y must be int64\[40\] for classification, got int64\[40, 3\]: these are several "
        r"labels of a window, of the task multi-label",
    ):
        ran("fedavg", several)
    columns = relabelled(classes, NAMES, lambda y: np.eye(3, dtype=np.int64)[y])
    with pytest.raises(DataError, match=r"these are a column for each class, y.argmax\(1\)"):
        ran("fedavg", columns)


@pytest.mark.parametrize(
    ("algorithm", "options", "told"),
    [
        (
            ALGORITHM,
            {"labels": 5},
            "labels must be all or none, .* labels of data synthetic are not classes, got 5",
        ),
        (
            ALGORITHM,
            {"attack": "label-flip"},
            "attack label-flip swaps classes, and the labels of data synthetic",
        ),
        (
            ALGORITHM,
            {"partition": "dirichlet"},
            "partition dirichlet assigns examples by their class, and the labels of data",
        ),
        (
            "distfl:signature=responses+multi-label",
            {},
            "needs .* and a task with classes",
        ),
    ],
)
def test_what_needs_classes_is_refused(algorithm: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises((ConfigError, DataError), match=told):
        shoal.simulate(several_labels(synthetic_fleet(3)), algorithm=algorithm, rounds=1, **options)


def test_what_needs_no_classes_goes_on() -> None:
    fleet = several_labels(synthetic_fleet(8))
    result = shoal.simulate(
        fleet,
        algorithm="distfl+multi-label",
        rounds=2,
        split="random",
        attack="sign-flip",
        newcomers=2,
    )
    newcomers, attack = known(result.summary.newcomers), known(result.summary.attack)
    assert known(newcomers.macro_f1).mean is not None
    assert attack.success_rate is None
    assert partition(fleet, read_partition("iid:devices=3"), 0).devices["d01"].train_y.shape[
        1:
    ] == (3,)
    assert reported_classes(Policy(tell_classes=True), fleet.devices["d0"].train_y) is None


def test_files_and_arrays_with_a_column_for_each_name_are_read(tmp_path: Path) -> None:
    fleet = several_labels(synthetic_fleet(2))
    for device_id in fleet.devices:
        write_device_folder(fleet, device_id, tmp_path / "folders" / device_id)
        (tmp_path / "folders" / device_id / "classes.txt").write_text("\n".join(NAMES) + "\n")
    (tmp_path / "folders" / "none").mkdir()
    np.savez(tmp_path / "folders" / "none" / "unlabelled.npz", X=fleet.devices["d0"].test_x)
    held = load_data(str(tmp_path / "folders"))
    assert held.classes == NAMES
    assert held.devices["none"].train_y.shape == (0, 3)
    x, y = fleet.sample()
    np.savez(tmp_path / "one.npz", X=x, y=y.astype(bool), subject=np.arange(len(y)) % 2)
    own = load_data(str(tmp_path / "one.npz"))
    assert own.classes == ("0", "1", "2")
    assert {(w.num_train, w.num_test, w.train_y.dtype) for w in own.devices.values()} == {
        (15, 5, np.dtype(np.int64))
    }
    mapped = shoal.load({"a": (x, y), "b": (x, y)}, classes=NAMES)
    assert (mapped.classes, mapped.devices["a"].train_y.tolist()) == (NAMES, y[:30].tolist())
    with pytest.raises(
        DataError,
        match=r"device 'b': labels of shape \[2\], but those of device 'a' have shape \[3\]",
    ):
        shoal.load({"a": (x, y), "b": (x, y[:, :2])})
    with pytest.raises(DataError, match="4 names for 3 labels of a window"):
        shoal.load({"a": (x, y)}, classes=("one", "two", "three", "four"))


@pytest.mark.slow
def test_graphs_on_devices_and_files_of_models_are_those_of_eager_torch(tmp_path: Path) -> None:
    fleet = several_labels(synthetic_fleet(2))
    objective = some_graphs(
        objective_for_fleet(fleet, read_algorithm(ALGORITHM), 0), "step", "evaluate", "predict"
    )
    published = publish(
        objective, fleet.window, fleet.classes, fleet.sample(), new_key(), name="several"
    )
    manifest = published.bundle.manifest
    assert (manifest.task, manifest.classes, manifest.label) == (
        "multi-label",
        NAMES,
        ("int64", (3,)),
    )
    assert check_parity(published.bundle, objective, *fleet.sample(), steps=5).step_error < 1e-4
    x = fleet.devices["d0"].test_x
    whole = load_whole(to_onnx_file(published.bundle, published.bundle.initial, {}))(x)
    answers = objective.graphs()["predict"](objective.initial(), {"x": torch.from_numpy(x)}, {})[
        names.PROBABILITIES
    ]
    np.testing.assert_allclose(whole, answers.detach().numpy(), atol=1e-5)


@pytest.mark.full
def test_a_model_of_a_devices_own_answers_as_the_device_does(tmp_path: Path) -> None:
    result = shoal.simulate(
        several_labels(synthetic_fleet(2)), algorithm="apfl+multi-label", rounds=1
    )
    x = result.data.devices["d0"].test_x
    np.testing.assert_allclose(
        result.predict(x, device="d0"), result.outcome.predict("d0", x), atol=1e-5
    )
    written = {file.name: file for file in result.save(tmp_path)}
    onnx = load_whole((tmp_path / f"{written['group-0'].name}.onnx").read_bytes())(x)
    np.testing.assert_allclose(onnx, result.predict(x, group=0), atol=1e-5)
    assert load_file(tmp_path / "device-d0.safetensors")


def test_what_is_told_of_a_window() -> None:
    assert told("multi-label", NAMES, np.array([0.25, 0.5, 0.75])) == {
        "labels": ["moves", "fast"],
        "probabilities": {"slow": 0.25, "moves": 0.5, "fast": 0.75},
    }
