"""Noise in shares: ``python -m benchmarks.secret_noise``.

Simulated fleets in secret mode, in which each device adds a share of the noise for an epsilon. The
clip norm is the same for all, chosen once without noise on the training parts.
"""

import json
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.results.report import describe_machine, keep
from simulation.datasets.catalog import load_data
from simulation.datasets.windows import FleetData
from simulation.partition import partition, read_partition
from simulation.settings import SimulationSettings
from simulation.simulate import simulate

OUT = Path(__file__).parent / "results" / "secret_noise.json"
ROUNDS, SEEDS = 10, range(3)
EPSILONS = (None, 20.0, 8.0, 4.0, 2.0, 1.0)
"""Epsilons after all rounds; None: clipped and summed without noise."""
FLEETS = {
    "watches of 20": ("watch", "", 20),
    "MNIST, 200 devices": ("mnist", "iid:devices=200:examples=60:tests=10", 200),
    "MNIST, 1,000 devices": ("mnist", "iid:devices=1000:examples=60:tests=10", 1000),
}
"""Data, partition, and number of devices."""


def accuracy_of(data: FleetData, devices: int, epsilon: float | None, seed: int) -> dict[str, Any]:
    """Return the mean accuracy of a run, and its epsilon. A tenth of the devices may be away."""
    private = "" if epsilon is None else f"shared-gaussian:epsilon={epsilon:g}:clip_norm=1"
    settings = SimulationSettings(
        "fedavg+uniform",
        ROUNDS,
        1,
        secret=True,
        min_sum=devices * 9 // 10,
        privacy=private or "gaussian:noise_multiplier=0:clip_norm=1",
        seed=seed,
    )
    result = simulate(data, settings)
    summary = result.summary
    return {"epsilon": summary.epsilon, "accuracy": summary.accuracy.mean, "seed": seed}
