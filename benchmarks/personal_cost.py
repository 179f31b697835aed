"""Cost of the choice of `personal` on a board besides its usual round, on a machine without other
load; called by `benchmarks.personal`."""

from typing import Any

import numpy as np

from algorithms.algorithm import SURVEY
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.contract import USUAL_PASSES, ObjectiveMemory, Work
from benchmarks.stopwatch import seconds_of
from edge_client.core.ports import Windows
from edge_client.graphs.onnx import OnnxGraphs
from edge_client.work.executor import Executor
from export.publish import publish
from simulation.datasets.catalog import load_data
from simulation.datasets.windows import FleetData
from simulation.objective import objective_for_fleet
from simulation.scenario import Scenario, set_scene
from wire.arrays.tensors import Tensors
from wire.identity.keys import new_key
from wire.messages import Plan

DATA, EPOCHS, METHODS = ("watch", "uci-har"), (1, 2, 5), ("personal", "lg-net")
DIGEST = "a" * 64
MANY_WINDOWS = 3000
ALL, FEW, ONE = (
    "all labels",
    "5 labels a class, the rest without",
    "1 label a class, the rest without",
)
MANY, LABELS_OF = f"all labels, {MANY_WINDOWS:,} windows without", {FEW: 5, ONE: 1}
"""Data of the board whose costs are measured; number of labels per class where they are few."""
COSTS = (
    "A board with onnxruntime: what it does after the last round, in usual rounds of its own "
    "(evaluate, train). Remembering windows "
    "and choosing take about as long whatever a device has, some 40 ms here, so that this is more "
    "than two rounds where a round is short: "
    "of one epoch, and with few labels."
)
"""Said above the table."""


def measure() -> list[dict[str, Any]]:
    """A row for each data set, what its first device has, and epochs of a round."""
    asked = [*((ALL, epochs) for epochs in EPOCHS), *((has, 1) for has in (FEW, ONE, MANY))]
    return [cost(data, epochs, has) for data in DATA for has, epochs in asked]


def text(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as a table, in lines of Markdown."""
    lines = [
        COSTS,
        "",
        "| data | it has | epochs of a round | windows to train on | usual round, ms | `personal` "
        "| the same, ms | `lg-net` |",
    ]
    lines += ["|---|" + "---|" * 7]
    for made in rows:
        usual, closing = (
            1000 * made["seconds"][f"personal, {kind}"] for kind in ("usual", "closing")
        )
        shown = (
            made["data"],
            made["has"],
            made["epochs"],
            made["windows"],
            f"{usual:.0f}",
            f"{made['ratio']['personal']:.2f}",
        )
        lines += [
            f"| {' | '.join(map(str, shown))} | {closing:.0f} | {made['ratio']['lg-net']:.2f} |"
        ]
    return lines


def cost(data: str, epochs: int, has: str = ALL, turns: int = 7) -> dict[str, Any]:
    """Seconds (the median of so many turns) of a usual round of a board with onnxruntime that `has`
    such windows, with and without the survey of its first round, and of what it does after the last
    round, as `personal` and as LG-Net."""
    fleet, work = load_data(data), Work(32, epochs, most_passes=USUAL_PASSES)
    windows = having(fleet, has)
    seconds: dict[str, float] = {}
    for name in METHODS:
        spec = read_algorithm(name)
        objective = objective_for_fleet(fleet, spec, 0)
        bundle = publish(
            objective, fleet.window, fleet.classes, fleet.sample(), new_key(), name=fleet.name
        ).bundle
        executor, coordinator = (
            Executor(bundle, OnnxGraphs(bundle), windows),
            make_algorithm(spec).coordinator,
        )
        model = {spec.key: bundle.initial[spec.key] for spec in bundle.manifest.received()}
        usual = coordinator.programs(ObjectiveMemory(), work)[""]
        programs = {
            "usual": usual,
            "usual with survey": (SURVEY, *usual),
            "closing": coordinator.closing(ObjectiveMemory(), work),
        }
        for kind, verbs in programs.items():
            plan = Plan("r", 1, 1, 0, "d", bundle.digest, DIGEST, tuple(verbs), 1, 1e12)
            seconds[f"{name}, {kind}"] = _median(executor, plan, model, turns)
    ratio = {name: seconds[f"{name}, closing"] / seconds[f"{name}, usual"] for name in METHODS}
    return {
        "data": data,
        "epochs": epochs,
        "windows": windows.num_train,
        "has": has,
        "seconds": seconds,
        "ratio": ratio,
    }


def having(fleet: FleetData, has: str) -> Windows:
    """The first device's windows: with all of its labels, with a few of each class, or with
    thousands of windows without labels besides."""
    device_id, windows = next(iter(fleet.devices.items()))
    if has in LABELS_OF:
        return set_scene(fleet.only([device_id]), Scenario(labels=LABELS_OF[has]), 0).devices[
            device_id
        ]
    if has == MANY:
        others = np.concatenate([w.train_x for w in fleet.devices.values()])
        x = np.ascontiguousarray(np.resize(others, (MANY_WINDOWS, *others.shape[1:])))
        return Windows(windows.train_x, windows.train_y, windows.test_x, windows.test_y, x)
    return windows


def _median(executor: Executor, plan: Plan, model: Tensors, turns: int) -> float:
    """Seconds of a plan, once its graphs are loaded."""

    def carry_out() -> None:
        executor.execute(plan, model, {}, lambda _: {})

    carry_out()
    return float(np.median(seconds_of(carry_out, turns)))
