"""Duration of a prediction on a phone besides the graph itself, at rest and while the same phone
trains.

Run as ``python -m benchmarks.phone_predictions``; writes
``benchmarks/results/phone_predictions.json``. The phone is the Kotlin client with ExecuTorch's
runtime on this machine's JVM. It trains without a pause, in batches of 32 windows; a prediction is
of one window.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from algorithms.composition import read_algorithm
from benchmarks.results.report import describe_machine, keep
from export.bundle import capture_graphs, make_bundle
from simulation.datasets.watch import load_watch
from simulation.datasets.windows import FleetData
from simulation.objective import objective_for_fleet
from wire.arrays import names
from wire.arrays.tensors import encode_tensors
from wire.identity.keys import new_key, public_pem

OUT = Path(__file__).parent / "results" / "phone_predictions.json"
BUILD = Path(__file__).parents[1] / "android_bridge" / "build"
BATCH = 32


class Measured(NamedTuple):
    """Milliseconds: medians, but for the first prediction and the 99th percentile."""

    graph: float
    prediction: float
    first: float
    step: float
    training: float
    """A prediction while the phone trains."""
    training_p99: float


def measure(command: list[str], data: FleetData, folder: Path) -> Measured:
    """Return the durations of predictions with this data's FedAvg. `command` runs the host's
    `Predict.kt`.

    Raises:
        RuntimeError: it failed.
    """
    objective, key = objective_for_fleet(data, read_algorithm("fedavg"), 0), new_key()
    exported = capture_graphs(objective, data.window.shape, ("onnx", "executorch"))
    bundle = make_bundle(
        exported,
        name="phone",
        bundle_version=1,
        objective=objective,
        classes=data.classes,
        window=data.window,
        key=key,
    )
    windows = next(iter(data.devices.values()))
    chosen = np.arange(BATCH) % windows.num_train
    batch = {names.X: windows.train_x[chosen], names.Y: windows.train_y[chosen]}
    batch |= {
        names.hyper(name): np.array(value, np.float32) for name, value in objective.hyper.items()
    }
    files = {
        "device.shoal": bundle,
        "trust.pem": public_pem(key),
        "batch.safetensors": encode_tensors(batch),
    }
    for name, payload in files.items():
        (folder / name).write_bytes(payload)
    given = [
        str(folder / name) for name in ("device.shoal", "trust.pem", "state", "batch.safetensors")
    ]
    done = subprocess.run([*command, *given], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return Measured(*map(float, done.stdout.split()))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    built = subprocess.run(
        [sys.executable, BUILD, "phone", "--entry", "PredictKt"],
        capture_output=True,
        text=True,
        check=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        found = measure(shlex.split(built.stdout), load_watch(), Path(folder))
    results: dict[str, Any] = {
        "machine": describe_machine(),
        "load": os.getloadavg()[0],
        "ms": found._asdict(),
    }
    titles = (
        "the graph alone",
        "a prediction",
        "the first one",
        "a training step",
        "a prediction while the phone trains",
        "99 % of those",
    )
    lines = [
        f"| {' | '.join(titles)} |",
        "|---" * len(titles) + "|",
        f"| {' | '.join(f'{ms:.2f}' for ms in found)} |",
    ]
    head = (
        f"`python -m benchmarks.phone_predictions`, ms. {results['machine']}, whose load was "
        f"{results['load']:.0f}; the watches' network."
    )
    text = "\n".join(["## Predictions on a phone", "", head, "", *lines])
    print(text)
    keep(results, arguments.out, OUT, "phone-predictions", text)


if __name__ == "__main__":
    main()
