"""Devices without labels whose windows are not what they will meet: of one class alone, or with a glitch of the sensor; called by
`benchmarks.personal`.

A quarter of the devices is held out and comes when training is over, without labels. Each comes several times: with all of its windows,
with those of one class, and with one window 1,000 times too large. It is tested on the classes that its windows are of.
"""

from collections.abc import Iterator
from statistics import fmean
from typing import Any

import msgspec
import numpy as np

from algorithms.core.probe import probe_of
from algorithms.registry import make_algorithm, read_algorithm
from edge_client.core.ports import Windows
from export.describe import describe_bundle
from simulation.datasets.catalog import load_data
from simulation.engine.graphs.eager import EagerGraphs
from simulation.engine.workers.secret import repeatable_secret
from simulation.newcomers import Reception, hold_out
from simulation.objective import objective_for_fleet
from simulation.scenario import OWN
from simulation.simulate import SimulationSettings, scene_of, simulate
from simulation.splits import read_split
from wire.tensors import Array

DATA = ("watch", "uci-har")
ROUNDS, EPOCHS, FEWEST = 12, 2, 4
"""A class of which a device has fewer windows than the last is left out."""
METHODS = ("served", "personal")
GLITCH = 1000.0


def variants(windows: Windows) -> Iterator[tuple[str, Windows]]:
    """What a device may come with instead of its windows, and by which it is tested."""

    def without_labels(x: Array, tested: Array) -> Windows:
        return Windows(windows.train_x[:0], windows.train_y[:0], windows.test_x[tested], windows.test_y[tested], x)

    everything = np.ones(len(windows.test_y), bool)
    spoilt = windows.train_x.copy()
    spoilt[0] *= GLITCH
    yield "all its windows", without_labels(windows.train_x, everything)
    yield "with a glitch", without_labels(spoilt, everything)
    for number in np.unique(windows.train_y):
        own, tested = windows.train_y == number, windows.test_y == number
        if own.sum() >= FEWEST and tested.any():
            yield f"one class alone, {number}", without_labels(windows.train_x[own], tested)


def measure(seeds: int) -> list[dict[str, Any]]:
    """For each data set and kind of windows, the mean accuracy of each method over devices, classes and seeds."""
    rows = []
    for name in DATA:
        found = [one(name, seed) for seed in range(seeds)]
        for kind in dict.fromkeys(kind for run in found for kind in run):
            accuracy = {method: fmean(run[kind][method] for run in found) for method in METHODS}
            rows.append({"data": name, "windows": kind, "seeds": seeds, "accuracy": accuracy})
    return rows


def one(name: str, seed: int) -> dict[str, dict[str, float]]:
    """One run of a data set: by the kind of windows and the method, the mean accuracy of those who came."""
    own = {method: read_algorithm(f"distfl+{method}") for method in METHODS}
    settings = SimulationSettings(algorithm=own["personal"], rounds=ROUNDS, local_epochs=EPOCHS, seed=seed, split=read_split("time"))
    everybody = scene_of(load_data(name), settings)
    fleet, held_out = hold_out(everybody, len(everybody.devices) // 4, seed)
    coming = {f"{device}: {kind}": windows for device, had in held_out.items() for kind, windows in variants(had)}
    found: dict[str, dict[str, list[float]]] = {}
    for method, spec in own.items():
        result = simulate(fleet, msgspec.structs.replace(settings, algorithm=spec, split=OWN))
        objective = objective_for_fleet(fleet, spec, seed)
        bundle = describe_bundle(objective, name=fleet.name, classes=fleet.classes, window=fleet.window)
        probe, graphs = probe_of(objective, fleet.window.shape), EagerGraphs(objective)
        reception = Reception(make_algorithm(spec), result.state, result.blobs, probe, bundle, graphs, repeatable_secret)
        for who, received in reception.receive(coming).items():
            kind = who.split(": ")[1].split(",")[0]
            right = received.evaluated.num_correct / received.evaluated.num_examples
            found.setdefault(kind, {}).setdefault(method, []).append(right)
    return {kind: {method: fmean(values) for method, values in by.items()} for kind, by in found.items()}


def text(rows: list[dict[str, Any]]) -> list[str]:
    """The results as Markdown."""
    lines = [
        "",
        "Devices without labels that come when training is over (a quarter of them), by what their windows are: mean accuracy over "
        f"devices, classes and {rows[0]['seeds']} seeds, in %. They are tested on the classes that their windows are of. A glitch is one "
        f"window {GLITCH:g} times too large.",
        "",
        "| data | windows | the group's model as it is (`served`) | `personal` |",
        "|---|---|---|---|",
    ]
    shown = ((row, *(100 * row["accuracy"][method] for method in METHODS)) for row in rows)
    return lines + [f"| {row['data']} | {row['windows']} | {served:.1f} | {personal:.1f} |" for row, served, personal in shown]
