"""Tasks beside classes on phones: the Kotlin client trains as the board's client and eager torch
do."""

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from algorithms.composition import read_algorithm
from algorithms.core.contract import exchanged
from edge_client.core.ports import Windows
from edge_client.graphs.onnx import OnnxGraphs
from edge_client.work.executor import Executor
from export.bundle import RUNTIMES, capture_graphs
from simulation.datasets.windows import FleetData, for_task
from simulation.engine.graphs.eager import EagerGraphs
from simulation.objective import objective_for_fleet
from tests.android.bridge import host_command
from tests.support.bundles import pack_graphs, some_graphs
from tests.support.fleets import synthetic_fleet
from tests.support.labels import quantities, several_labels, steps
from wire.arrays.tensors import decode_tensors, encode_tensors
from wire.bundle import unpack
from wire.codec import digest, encode
from wire.messages import Evaluate, Plan, Train
from wire.tasks import TaskName

pytestmark = pytest.mark.full

TOLERANCE = 1e-4


def nobody_labelled(fleet: FleetData) -> FleetData:
    """Return the training windows without labels; the test windows keep theirs."""
    w = fleet.devices["d0"]
    return replace(
        fleet, devices={"d0": Windows(w.train_x[:0], w.train_y[:0], w.test_x, w.test_y, w.train_x)}
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("task", "labels"),
    [
        ("reconstruction", nobody_labelled),
        ("multi-label", several_labels),
        ("regression", quantities),
        ("sequence", steps),
    ],
)
def test_three_clients_train_alike(
    tmp_path: Path, task: TaskName, labels: Callable[[FleetData], FleetData]
) -> None:
    fleet = labels(synthetic_fleet(1))
    windows = fleet.devices["d0"]
    objective = objective_for_fleet(
        for_task(fleet, task), read_algorithm(f"fedavg:lr=0.02+{task}"), 0
    )
    objective = some_graphs(objective, "step", "evaluate", "predict")
    payload = pack_graphs(capture_graphs(objective, fleet.window.shape, RUNTIMES), fleet, objective)
    bundle, path = unpack(payload), tmp_path / "device.shoal"
    path.write_bytes(payload)
    plan = Plan("run", 1, 1, 0, "d0", digest(payload), "0" * 64, (Train(16, 2), Evaluate()), 5, 1e9)
    model, case = exchanged(bundle.initial), tmp_path / "case" / "d0"
    case.mkdir(parents=True)
    (case / "plan.json").write_bytes(encode(plan))
    (case / "model.safetensors").write_bytes(encode_tensors(model))
    arrays = {name: getattr(windows, name) for name in ("train_x", "train_y", "test_x", "test_y")}
    arrays["unlabelled_x"] = windows.unlabelled_x.reshape(-1, *fleet.window.shape)
    (case / "windows.safetensors").write_bytes(encode_tensors(arrays))
    done = subprocess.run(
        [*host_command("PlansKt"), str(path), str(case.parent)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    phone = decode_tensors((case / "update.safetensors").read_bytes())[0]
    for graphs in (EagerGraphs(objective), OnnxGraphs(bundle)):
        made = (
            Executor(bundle, graphs, windows)
            .execute(plan, model, {}, lambda name: pytest.fail(f"no blob {name}"))
            .tensors
        )
        assert made.keys() == phone.keys()
        for key, value in made.items():
            np.testing.assert_allclose(phone[key], value, atol=TOLERANCE, err_msg=key)
