"""Devices whose windows are not what they will meet: of one class alone, with a glitch of the
sensor, or with labels of a part of the classes; called by `benchmarks.personal`.

A quarter of the devices is held out and comes when training is over. Each comes several times:
without labels, with all of its windows, with those of one class, and with one window 1,000 times
too large; and with two labels of each of every other class, beside its other windows, or alone. It
comes by itself: several such devices would be a group. It is tested on the classes that its windows
are of; with labels, on all.
"""

from collections.abc import Iterator
from statistics import fmean
from typing import Any

import msgspec
import numpy as np

from algorithms.composition import make_algorithm, read_algorithm
from edge_client.core.ports import Windows
from export.describe import describe_bundle
from simulation.datasets.catalog import load_data
from simulation.engine.graphs.eager import EagerGraphs
from simulation.engine.workers.device_host import repeatable_secret
from simulation.newcomers import Reception, hold_out
from simulation.objective import objective_for_fleet
from simulation.settings import SimulationSettings
from simulation.simulate import scene_of, simulate
from wire.arrays.tensors import Array

DATA = ("watch", "uci-har")
ROUNDS, EPOCHS, FEWEST = 12, 2, 4
"""A class of which a device has fewer windows than the last is left out."""
LABELS = 2
PART = f"{LABELS} labels of every other class"
PART_ALONE = f"{PART} and nothing else"
METHODS = ("served", "personal")
GLITCH = 1000.0


def variants(windows: Windows) -> Iterator[tuple[str, Windows]]:
    """Yield the variants of a device's windows, each with its name and its test windows."""

    def without_labels(x: Array, tested: Array) -> Windows:
        return Windows(
            windows.train_x[:0],
            windows.train_y[:0],
            windows.test_x[tested],
            windows.test_y[tested],
            x,
        )

    everything = np.ones(len(windows.test_y), bool)
    spoilt = windows.train_x.copy()
    spoilt[0] *= GLITCH
    yield "all its windows", without_labels(windows.train_x, everything)
    yield "with a glitch", without_labels(spoilt, everything)
    x, y = windows.train_x, windows.train_y
    named = np.sort(
        np.concatenate([np.flatnonzero(y == number)[:LABELS] for number in np.unique(y)[::2]])
    )
    others = np.delete(x, named, 0)
    yield PART, Windows(x[named], y[named], windows.test_x, windows.test_y, others)
    yield PART_ALONE, Windows(x[named], y[named], windows.test_x, windows.test_y)
    for number in np.unique(windows.train_y):
        own, tested = windows.train_y == number, windows.test_y == number
        if own.sum() >= FEWEST and tested.any():
            yield f"one class alone, {number}", without_labels(windows.train_x[own], tested)


def measure(seeds: int) -> list[dict[str, Any]]:
    """For each data set and kind of windows, the mean accuracy of each method over devices, classes
    and seeds."""
    rows = []
    for name in DATA:
        found = [one(name, seed) for seed in range(seeds)]
        for kind in dict.fromkeys(kind for run in found for kind in run):
            accuracy = {method: fmean(run[kind][method] for run in found) for method in METHODS}
            rows.append({"data": name, "windows": kind, "seeds": seeds, "accuracy": accuracy})
    return rows


def one(name: str, seed: int) -> dict[str, dict[str, float]]:
    """One run of a data set: by the kind of windows and the method, the mean accuracy of those who
    came."""
    own = {method: read_algorithm(f"distfl+{method}") for method in METHODS}
    settings = SimulationSettings(
        algorithm=own["personal"],
        rounds=ROUNDS,
        local_epochs=EPOCHS,
        seed=seed,
        split="time",
    )
    everybody = scene_of(load_data(name), settings)
    fleet, held_out = hold_out(everybody, len(everybody.devices) // 4, seed)
    coming = {
        f"{device}: {kind}": windows
        for device, had in held_out.items()
        for kind, windows in variants(had)
    }
    found: dict[str, dict[str, list[float]]] = {}
    for method, spec in own.items():
        result = simulate(fleet, msgspec.structs.replace(settings, algorithm=spec, split="own"))
        objective = objective_for_fleet(fleet, spec, seed)
        bundle = describe_bundle(
            objective, name=fleet.name, classes=fleet.classes, window=fleet.window
        )
        graphs = EagerGraphs(objective)
        reception = Reception(
            make_algorithm(spec),
            result.campaign,
            result.blobs,
            bundle,
            graphs,
            repeatable_secret,
        )
        for who, windows in coming.items():
            received = reception.receive(
                {who: windows if method == "personal" else _without(windows)}
            )[who]
            kind = who.split(": ")[1].split(",")[0]
            right = received.evaluated.num_correct / received.evaluated.num_examples
            found.setdefault(kind, {}).setdefault(method, []).append(right)
    return {
        kind: {method: fmean(values) for method, values in by.items()} for kind, by in found.items()
    }


def _without(windows: Windows) -> Windows:
    """Return the device without its labels, so that it uses the model that it is served."""
    x = (
        np.concatenate([windows.train_x, windows.unlabelled_x])
        if windows.num_unlabelled
        else windows.train_x
    )
    return Windows(windows.train_x[:0], windows.train_y[:0], windows.test_x, windows.test_y, x)


def text(rows: list[dict[str, Any]]) -> list[str]:
    """The results as Markdown."""
    lines = [
        "",
        "Devices that come when training is over (a quarter of them), by what their windows are: "
        "mean accuracy over devices, classes and "
        f"{rows[0]['seeds']} seeds, in %. Without labels they are tested on the classes that "
        "their windows are of, with labels on all. A "
        f"glitch is one window {GLITCH:g} times too large. A device that has windows of other "
        "classes does not go by its training on "
        "labels of a part of them, but with so few it may come into another group than it belongs "
        "to: on the watches 4 of 15 do, which "
        "costs all that is lost there.",
        "",
        "| data | windows | the group's model as it is (`served`) | `personal` |",
        "|---|---|---|---|",
    ]
    shown = ((row, *(100 * row["accuracy"][method] for method in METHODS)) for row in rows)
    return lines + [
        f"| {row['data']} | {row['windows']} | {served:.1f} | {personal:.1f} |"
        for row, served, personal in shown
    ]
