"""Programs on ExecuTorch's real Java classes: twenty steps on a desktop JVM, held against eager
torch in float32 and float64."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from algorithms.composition import read_algorithm
from algorithms.objectives.supervised import Supervised
from export.bundle import capture_graphs
from simulation.objective import objective_for_fleet
from tests.android.bridge import host_command
from tests.android.steps import draw_batches, eager, on_the_jvm
from tests.support.bundles import pack_graphs
from tests.support.fleets import synthetic_fleet
from wire.arrays.tensors import Tensors, decode_tensors
from wire.bundle import Bundle, unpack

pytestmark = pytest.mark.full

ALGORITHMS = [
    "fedavg",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("dbe", "cgau", "feddisk")),
]


@pytest.fixture(scope="module", params=ALGORITHMS)
def prepared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Supervised, Bundle, list[Tensors]]:
    """A bundle's file, its objective, the bundle, and what the batches of twenty steps hold."""
    data = synthetic_fleet(2, num_windows=96)
    objective = objective_for_fleet(data, read_algorithm(request.param), 0)
    exported = capture_graphs(objective, data.window.shape, ("onnx", "executorch"))
    payload = pack_graphs(exported, data, objective)
    path = tmp_path_factory.mktemp("steps") / "device.shoal"
    path.write_bytes(payload)
    return path, objective, unpack(payload), draw_batches(objective, data.devices["d0"])


def test_twenty_steps_are_at_most_twice_as_far_from_float64_as_those_of_eager_float32(
    prepared: tuple[Path, Supervised, Bundle, list[Tensors]],
) -> None:
    path, objective, bundle, batches = prepared
    done = on_the_jvm(path, bundle, batches)
    assert done.returncode == 0, done.stderr
    found = decode_tensors(path.with_name("outputs.safetensors").read_bytes())[0]
    single, double = (
        eager(objective, bundle, batches, dtype) for dtype in (torch.float32, torch.float64)
    )
    changed = {
        name.removeprefix("next/"): value
        for name, value in found.items()
        if name.startswith("next/")
    }
    # FedDisk's density network, `made`, is trained by another graph
    trained = {spec.key for spec in bundle.manifest.of_role("shared") if "/made." not in spec.key}
    assert changed.keys() >= trained
    assert any(
        float(np.abs(value - bundle.initial[name]).max()) > 1e-3 for name, value in changed.items()
    )
    ours, rounding = (
        max(float(np.abs(values[name] - double[name]).max()) for name in changed)
        for values in (changed, single)
    )
    assert ours <= 2 * rounding, (
        f"the JVM differs from float64 by {ours:.2e}, eager float32 by {rounding:.2e}"
    )


def test_a_bundle_of_a_newer_exporter_is_refused(
    prepared: tuple[Path, Supervised, Bundle, list[Tensors]],
) -> None:
    path, _, bundle, batches = prepared
    done = on_the_jvm(path, bundle, batches[:1], version="1.4.0")
    assert done.returncode != 0
    assert "it was exported with executorch" in done.stderr
    assert "this device has 1.4.0" in done.stderr


@pytest.mark.parametrize("threads", [1, 3])
def test_the_threads_of_an_apps_own_models_stay_as_they_are(
    prepared: tuple[Path, Supervised, Bundle, list[Tensors]], threads: int
) -> None:
    path = prepared[0]
    arguments = [str(path), str(path.parent), str(threads)]
    done = subprocess.run([*host_command("ThreadsKt"), *arguments], capture_output=True, text=True)
    assert done.stdout.split() == [str(threads), str(threads)], done.stderr
