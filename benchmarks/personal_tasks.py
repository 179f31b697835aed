"""What devices keep in tasks without classes: fleets of real windows, and `personal` beside other methods; called by `benchmarks.personal`.

The watches are relabelled by what is known of their data. The gyroscope is taken away, and the model has to tell from the accelerometer how
strongly the arm turned about each axis: as quantities (regression), or as names, stronger than the fleet's median or not (multi-label).
Sequence and reconstruction take the data as they are.
"""

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from typing import Any

import msgspec
import numpy as np

import shoal
from edge_client.core.ports import Windows
from simulation.datasets.catalog import load_data
from simulation.datasets.windows import FleetData
from wire.tensors import Array

SEEN = 3
"""The channels of the accelerometer come first."""
METHODS = ("fedavg", "local", "personal")
ROUNDS, EPOCHS = 4, 1


def turning(data: FleetData) -> FleetData:
    """The watches' accelerometer, and as quantities the logarithm of the mean power about each axis of the gyroscope."""

    def made(x: Array) -> tuple[Array, Array]:
        power = np.square(x[:, SEEN:], dtype=np.float64).mean(2)
        return np.ascontiguousarray(x[:, :SEEN]), np.log10(power + 1e-6).astype(np.float32)

    devices = {}
    for device_id, held in data.devices.items():
        (train_x, train_y), (test_x, test_y) = made(held.train_x), made(held.test_x)
        devices[device_id] = Windows(train_x, train_y, test_x, test_y)
    window = msgspec.structs.replace(data.window, channels=data.window.channels[:SEEN])
    return replace(data, window=window, classes=data.window.channels[SEEN:], devices=devices, recordings={})


def turning_much(data: FleetData) -> FleetData:
    """The same, and as names the axes about which the arm turned more strongly than in half of the fleet's windows."""
    told = turning(data)
    median = np.median(np.concatenate([w.train_y for w in told.devices.values()]), axis=0)
    devices = {
        device_id: Windows(w.train_x, (w.train_y > median).astype(np.int64), w.test_x, (w.test_y > median).astype(np.int64))
        for device_id, w in told.devices.items()
    }
    return replace(told, devices=devices)


Fleet = Callable[[], FleetData]
CELLS: tuple[tuple[str, str, Fleet, dict[str, Any]], ...] = (
    ("watch, how strongly the arm turns", "regression", lambda: turning(load_data("watch")), {}),
    ("watch, whether it turns strongly", "multi-label", lambda: turning_much(load_data("watch")), {}),
    ("watch-session", "adam+sequence", lambda: load_data("watch-session"), {"lr": 0.003}),
    ("watch", "adam+reconstruction", lambda: load_data("watch"), {"lr": 0.002}),
    ("uci-har", "adam+reconstruction", lambda: load_data("uci-har"), {"lr": 0.002}),
)
"""What is learned, how algorithms name it, the fleet, and options of the run."""


def measure(seeds: int, methods: tuple[str, ...] = METHODS, cells: tuple[int, ...] = tuple(range(len(CELLS)))) -> list[dict[str, Any]]:
    """A row for each cell and method: mean over seeds of accuracy over devices, of the worst tenth, and of the loss; and what devices keep."""
    rows = []
    for what, task, fleet, options in (CELLS[i] for i in cells):
        data = fleet()
        for method in methods:
            runs = [
                shoal.simulate(data, algorithm=f"{method}+{task}", rounds=ROUNDS, local_epochs=EPOCHS, seed=seed, **options).summary
                for seed in range(seeds)
            ]
            losses = [fmean(d.loss for d in run.devices.values() if d.loss is not None) for run in runs]
            kept: dict[str, int] = {}
            for run in runs:
                for name, count in (run.kept.candidates if run.kept else {}).items():
                    kept[name] = kept.get(name, 0) + count
            rows.append(
                {
                    "what": what,
                    "task": task,
                    "method": method,
                    "seeds": seeds,
                    "accuracy": fmean(run.accuracy.mean or 0.0 for run in runs),
                    "worst_tenth": fmean(run.accuracy.worst_tenth or 0.0 for run in runs),
                    "loss": fmean(losses),
                    "kept": kept,
                }
            )
    return rows
