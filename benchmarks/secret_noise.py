"""Noise in shares: ``python -m benchmarks.secret_noise``.

Simulated fleets in secret mode, in which each device adds a share of the noise for an epsilon. A
sum needs nine tenths of the devices. The model is one linear layer, and the clip norm is 1.
"""

import json
import statistics
from pathlib import Path
from typing import Any

from torch import nn

from algorithms.composition import make_objective, read_algorithm
from algorithms.models.adoption.adopt import adopt
from algorithms.objectives.supervised import Supervised
from benchmarks.results.report import describe_machine, keep
from simulation.datasets.catalog import load_data
from simulation.datasets.windows import FleetData
from simulation.partition import partition, read_partition
from simulation.settings import SimulationSettings
from simulation.simulate import simulate

OUT = Path(__file__).parent / "results" / "secret_noise.json"
ROUNDS, SEEDS = 10, range(3)
NOISES = (
    "gaussian:noise_multiplier=0",
    *(f"shared-gaussian:epsilon={e}" for e in (20, 8, 4, 2, 1)),
)
"""Privacy mechanisms; the first one clips and adds no noise."""
DEVICES = (20, 200, 1000)


def mnist_of(devices: int, seed: int) -> FleetData:
    """Return MNIST dealt at random, 60 examples and 10 tests a device."""
    spec = read_partition(f"iid:devices={devices}:examples=60:tests=10")
    return partition(load_data("mnist"), spec, seed)


def linear_on(data: FleetData) -> Supervised:
    """Return the training of one linear layer on images, by FedAvg."""
    window, count = data.window, len(data.classes)
    net = nn.Sequential(nn.Flatten(), nn.Linear(window.height * window.length, count))
    model = adopt("linear", net, window.shape, count, nn.Identity())
    return make_objective(read_algorithm("fedavg+uniform"), model)


def accuracy_of(data: FleetData, noise: str, seed: int) -> float:
    """Return the mean accuracy of a run in per cent."""
    is_clear = noise.startswith("gaussian")
    settings = SimulationSettings(
        "fedavg+uniform",
        ROUNDS,
        1,
        batch_size=10,
        secret=not is_clear,
        min_sum=len(data.devices) * 9 // 10,
        privacy=f"{noise}:clip_norm=1",
        hyper={"lr": 0.05},
        seed=seed,
    )
    accuracy = simulate(data, settings, objective=linear_on(data)).summary.accuracy.mean
    assert accuracy is not None
    return 100 * accuracy


def measure_rows(devices: int) -> dict[str, Any]:
    """Return the accuracies of each mechanism on a number of devices, by seed."""
    accuracies: dict[str, list[float]] = {noise: [] for noise in NOISES}
    for seed in SEEDS:
        data = mnist_of(devices, seed)
        for noise in NOISES:
            accuracies[noise].append(accuracy_of(data, noise, seed))
            print(devices, seed, noise, f"{accuracies[noise][-1]:.1f} %", flush=True)
    return {"devices": devices, "accuracies": accuracies}


def section(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    heads = ["none", *(noise.rpartition("=")[2] for noise in NOISES[1:])]
    lines = [
        "## Noise in shares",
        "",
        f"Machine: {results['machine']}. Made by `python -m benchmarks.secret_noise`; numbers in "
        f"`results/secret_noise.json`. MNIST dealt at random, 60 examples a device, one linear "
        f"layer of 7,850 numbers, {ROUNDS} rounds, batches of 10, updates clipped to 1. Accuracy "
        f"in %, the mean of {len(SEEDS)} seeds and its range, by epsilon after all rounds at "
        "delta 1e-5.",
        "",
        f"| devices | {' | '.join(heads)} |",
        f"|---{'|---' * len(heads)}|",
    ]
    for row in results["rows"]:
        cells = [
            f"{statistics.fmean(values):.1f} ({min(values):.1f} to {max(values):.1f})"
            for values in row["accuracies"].values()
        ]
        lines.append(f"| {row['devices']:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write the results."""
    results = {
        "machine": describe_machine(),
        "rows": [measure_rows(devices) for devices in DEVICES],
    }
    print(json.dumps(results["rows"]))
    keep(results, OUT, OUT, "secret-noise", section(results))


if __name__ == "__main__":
    main()
