"""Shoal: `simulate` with FedAvg on a fleet made of the workload's windows, none of them kept for
tests.

The engine is the one call of `simulate` in `main`; how many processes and threads it takes is said
in `systems.py`.
"""

import time
from importlib.metadata import version

import numpy as np
import torch
from torch import nn

from algorithms.composition import make_objective, read_algorithm
from algorithms.core.keys import NEWCOMER
from algorithms.models.classifier import Classifier
from benchmarks.peers.workload import (
    BATCH,
    CHANNELS,
    CLASSES,
    EPOCHS,
    MOMENTUM,
    RATE,
    SAMPLES,
    Fleet,
    Net,
    durations,
    make_model,
    read_job,
    report,
)
from edge_client.core.ports import Windows
from simulation.datasets.windows import FleetData
from simulation.engine.options import DEFAULT, EngineOptions
from simulation.settings import SimulationSettings
from simulation.simulate import simulate
from wire.arrays import names
from wire.arrays.tensors import decode_tensors
from wire.bundle import Window


def make_fleet(fleet: Fleet, devices: int) -> FleetData:
    """The workload as Shoal's own kind of data."""
    none = np.zeros((0, CHANNELS, SAMPLES), np.float32), np.zeros(0, np.int64)
    windows = {f"device-{n:04d}": Windows(fleet.x[n], fleet.y[n], *none) for n in range(devices)}
    shape = Window(tuple(f"channel-{n}" for n in range(CHANNELS)), SAMPLES, SAMPLES)
    return FleetData("peers", shape, tuple(f"class-{n}" for n in range(CLASSES)), windows)


def as_classifier(net: Net) -> Classifier:
    """The workload's layers as body and head; they see the windows as they are."""
    *layers, head = net
    assert isinstance(head, nn.Linear)
    return Classifier(nn.Identity(), nn.Sequential(*layers), head)


def main(engine: EngineOptions = DEFAULT) -> None:
    """A round ends when its updates are aggregated."""
    job = read_job()
    stamps: list[float] = []

    model = make_model()
    classifier = as_classifier(model)
    settings = SimulationSettings(
        read_algorithm("fedavg"),
        job.rounds,
        EPOCHS,
        batch_size=BATCH,
        hyper={"lr": RATE, "momentum": MOMENTUM},
    )
    tell = lambda _told: stamps.append(time.perf_counter())  # noqa: E731
    outcome = simulate(
        make_fleet(Fleet(job.data), job.devices),
        settings,
        tell,
        make_objective(read_algorithm("fedavg"), classifier),
        engine,
    )
    (digest,) = {d for key, d in outcome.campaign.models.items() if key != NEWCOMER}
    learned, _ = decode_tensors(outcome.blobs.get(digest))
    state = {names.name_of(key): torch.from_numpy(value) for key, value in learned.items()}
    classifier.load_state_dict({**classifier.state_dict(), **state})
    report(durations(stamps), model, job, f"shoal {version('shoal')}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
