"""Windows of ids on phones: the Kotlin client trains and answers on a desktop JVM as the board's
client and eager torch do."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from algorithms.composition import read_algorithm
from algorithms.core.contract import exchanged
from edge_client.core.ports import Windows
from edge_client.graphs.onnx import OnnxGraphs
from edge_client.work.executor import Executor
from export.bundle import RUNTIMES, capture_graphs
from simulation.engine.graphs.eager import EagerGraphs
from simulation.objective import objective_for_fleet
from tests.android.bridge import host_command
from tests.support.bundles import pack_graphs, some_graphs
from tests.support.ids import fleet_of_ids
from wire.arrays.tensors import decode_tensors, encode_tensors
from wire.bundle import unpack
from wire.codec import digest, encode
from wire.messages import Evaluate, Plan, Train

pytestmark = pytest.mark.full

TOLERANCE = 1e-4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_three_clients_train_alike_on_ids_and_the_phone_refuses_what_is_none(
    tmp_path: Path,
) -> None:
    fleet = fleet_of_ids(1)
    objective = some_graphs(
        objective_for_fleet(fleet, read_algorithm("fedavg:lr=0.05"), 0, "text-cnn"),
        "step",
        "evaluate",
        "predict",
    )
    payload = pack_graphs(capture_graphs(objective, fleet.window.shape, RUNTIMES), fleet, objective)
    bundle, windows, path = unpack(payload), fleet.devices["d0"], tmp_path / "device.shoal"
    path.write_bytes(payload)
    plan = Plan("run", 1, 1, 0, "d0", digest(payload), "0" * 64, (Train(16, 2), Evaluate()), 5, 1e9)
    model = exchanged(bundle.initial)

    def on_the_jvm(case: Path, windows: Windows) -> subprocess.CompletedProcess[str]:
        case.mkdir(parents=True)
        (case / "plan.json").write_bytes(encode(plan))
        (case / "model.safetensors").write_bytes(encode_tensors(model))
        arrays = {
            name: getattr(windows, name) for name in ("train_x", "train_y", "test_x", "test_y")
        }
        (case / "windows.safetensors").write_bytes(
            encode_tensors(arrays | {"unlabelled_x": windows.train_x[:0]})
        )
        return subprocess.run(
            [*host_command("PlansKt"), str(path), str(case.parent)], capture_output=True, text=True
        )

    done = on_the_jvm(tmp_path / "right" / "d0", windows)
    assert done.returncode == 0, done.stderr
    phone = decode_tensors((tmp_path / "right" / "d0" / "update.safetensors").read_bytes())[0]
    for graphs in (EagerGraphs(objective), OnnxGraphs(bundle)):
        made = (
            Executor(bundle, graphs, windows)
            .execute(plan, model, {}, lambda name: pytest.fail(f"no blob {name}"))
            .tensors
        )
        assert made.keys() == phone.keys()
        for key, value in made.items():
            np.testing.assert_allclose(phone[key], value, atol=TOLERANCE, err_msg=key)

    wrong = windows.train_x.copy()
    wrong[3, 0, 1] = 24
    refused = on_the_jvm(
        tmp_path / "wrong" / "d0", Windows(wrong, windows.train_y, windows.test_x, windows.test_y)
    )
    assert refused.returncode != 0
    assert "training windows: x must hold ids from 0 to 23, got 24 in window 3" in refused.stderr
