"""Personal models in tasks without classes: fleets of real windows, and `personal` beside other
methods; called by `benchmarks.personal`.

The watches are relabelled by properties of their data. The gyroscope is removed, and the model has
to infer from the accelerometer how strongly the arm turned about each axis: as quantities
(regression), or as names, stronger than the fleet's median or not (multi-label). Sequence and
reconstruction use the data as they are.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import msgspec
import numpy as np

import shoal
from edge_client.core.ports import Windows
from simulation.datasets.catalog import load_data
from simulation.datasets.windows import FleetData
from wire.arrays.tensors import Array

SEEN = 3
"""The channels of the accelerometer come first."""
METHODS = ("fedavg", "local", "personal")
DEVICES, ROUNDS, EPOCHS = 8, 4, 1
"""So few that the whole part takes ten minutes."""


def turning(data: FleetData) -> FleetData:
    """The watches' accelerometer, and as quantities the logarithm of the mean power about each axis
    of the gyroscope."""

    def made(x: Array) -> tuple[Array, Array]:
        power = np.square(x[:, SEEN:], dtype=np.float64).mean(2)
        return np.ascontiguousarray(x[:, :SEEN]), np.log10(power + 1e-6).astype(np.float32)

    devices = {}
    for device_id, held in data.devices.items():
        (train_x, train_y), (test_x, test_y) = made(held.train_x), made(held.test_x)
        devices[device_id] = Windows(train_x, train_y, test_x, test_y)
    window = msgspec.structs.replace(data.window, channels=data.window.channels[:SEEN])
    return replace(
        data, window=window, classes=data.window.channels[SEEN:], devices=devices, recordings={}
    )


def turning_much(data: FleetData) -> FleetData:
    """Return the fleet with names: the axes about which the arm turned more strongly than in half
    of the fleet's windows."""
    told = turning(data)
    median = np.median(np.concatenate([w.train_y for w in told.devices.values()]), axis=0)
    devices = {
        device_id: Windows(
            w.train_x,
            (w.train_y > median).astype(np.int64),
            w.test_x,
            (w.test_y > median).astype(np.int64),
        )
        for device_id, w in told.devices.items()
    }
    return replace(told, devices=devices)


Fleet = Callable[[], FleetData]
Cell = tuple[str, str, Fleet, dict[str, Any]]
CELLS: tuple[Cell, ...] = (
    ("watch, how strongly the arm turns", "regression", lambda: turning(_some("watch")), {}),
    ("watch, whether it turns strongly", "multi-label", lambda: turning_much(_some("watch")), {}),
    ("watch-session", "adam+sequence", lambda: _some("watch-session", 4), {"lr": 0.003}),
    ("watch", "adam+reconstruction", lambda: _some("watch"), {"lr": 0.002}),
    ("uci-har", "adam+reconstruction", lambda: _some("uci-har"), {"lr": 0.002}),
)
"""Task, its name in algorithms, the fleet, and options of the run."""


def measure(seeds: int, cells: Sequence[Cell] = CELLS) -> list[dict[str, Any]]:
    """A row for each cell and method: the means over seeds of devices' accuracy, of that of their
    worst tenth, and of their loss; and how many devices keep which candidate, over all seeds."""
    return [_row(cell, method, seeds) for cell in cells for method in METHODS]


def text(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as a table, in lines of Markdown."""
    told = (
        f"In tasks without classes: the first {DEVICES} devices of a data set (4 of "
        f"`watch-session`), {ROUNDS} rounds of {EPOCHS} epoch. "
        "Where the arm turns, the gyroscope is taken away from the watches' data, and the model "
        "tells from the accelerometer how strongly "
        "the arm turns about each axis. Accuracy is that of the task, in %, and in brackets that "
        "of the worst tenth; the loss is the mean "
        "over devices. After so few rounds a device without neighbours to look up may be better "
        "off with a model of its own alone "
        "(`local`): `personal` goes three quarters of the way of one training. By `python -m "
        "benchmarks.personal --only tasks`."
    )
    lines = [
        told,
        "",
        "| data | task | seeds | method | accuracy | loss | what devices keep |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        counts = row["personal_models"].items()
        models = ", ".join(f"{name}: {count}" for name, count in counts if count)
        accuracy = f"{100 * row['accuracy']:.1f} ({100 * row['worst_tenth']:.1f})"
        lines.append(
            f"| {row['what']} | {row['task']} | {row['seeds']} | {row['method']} | {accuracy} | "
            f"{row['loss']:.3f} | {models} |"
        )
    return lines


def _some(name: str, count: int = DEVICES) -> FleetData:
    """The first devices of a data set."""
    data = load_data(name)
    return data.only(sorted(data.devices)[:count])


def _row(cell: Cell, method: str, seeds: int) -> dict[str, Any]:
    what, task, fleet, options = cell
    data, algorithm = fleet(), f"{method}+{task}"
    made = (
        shoal.simulate(
            data, algorithm=algorithm, rounds=ROUNDS, local_epochs=EPOCHS, seed=seed, **options
        )
        for seed in range(seeds)
    )
    runs = [result.summary for result in made]
    kept: Counter[str] = Counter()
    for run in runs:
        kept.update(run.personal_models.candidates if run.personal_models else {})
    return {
        "what": what,
        "task": task,
        "method": method,
        "seeds": seeds,
        "accuracy": fmean(run.accuracy.mean or 0.0 for run in runs),
        "worst_tenth": fmean(run.accuracy.worst_tenth or 0.0 for run in runs),
        "loss": fmean(device.loss or 0.0 for run in runs for device in run.devices.values()),
        "personal_models": dict(kept),
    }
