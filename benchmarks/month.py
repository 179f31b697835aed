"""A month of a device: ``python -m benchmarks.month``.

A quarter of the devices of the watches and of UCI HAR is held out of training. Each then records
for `DAYS` days, and each day one stretch of its windows gets a label. On day `TURNED` its sensors
are turned, and on day `PASSED` they are put right and another person takes the device over. A
device chooses its model by the service's rule (``aggregator.fleet.desired.GROWTH``), from all that
it has recorded, or, in the last two of `WAYS`, from the windows since a change alone. Trained
fleets lie in ``--folder``: a run that was interrupted goes on after the last seed. Writes
``benchmarks/results/month.json`` and a section of RESULTS.md.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from aggregator.fleet.desired import GROWTH
from benchmarks.newcomers import DATA, SPEC, reception_of, trained
from benchmarks.results.report import describe_machine, keep
from edge_client.core.ports import Windows
from edge_client.live.drift import distance, features
from simulation.objective import objective_for_fleet
from wire.arrays.tensors import Array

OUT = Path(__file__).parent / "results" / "month.json"
DAYS, TURNED, PASSED, SEEDS = 28, 11, 21, 3
STRETCH, STRETCHES = 4, 8
"""Windows of a stretch, and stretches of a day; one of these gets a label."""
SHOWN = (1, 2, 5, 10, 11, 12, 15, 20, 21, 22, 25, 28)
"""Days of the table."""
APART, LEAST_DAYS = 0.1, 2
"""Distance of a day from the days before it, at least so many, from which the data have changed."""
WAYS = {
    "frozen": "frozen after day 1",
    "product": "the product",
    "since": "windows since the change",
    "drift": "windows since drift",
}


def turned(x: Array) -> Array:
    """Return windows x (n, channels, time) of a device that is turned by 90 degrees.

    The channels are three axes for each sensor. The device is turned about the third axis.
    """
    axes = x.reshape(len(x), -1, 3, x.shape[2])
    return np.stack([-axes[:, :, 1], axes[:, :, 0], axes[:, :, 2]], 2).reshape(x.shape)


def phase_of(day: int) -> int:
    """Return the state of a device on a day: 0 as it came, 1 turned, 2 with another person."""
    return (day >= TURNED) + (day >= PASSED)


def day_of(windows: Windows, day: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Return a day's labelled windows, their labels, and its windows without a label.

    A day is of random stretches of windows of one class. The class of the labelled one is drawn
    evenly.
    """
    y = windows.train_y
    rows = []
    for label in rng.choice(np.unique(y), STRETCHES):
        at = np.flatnonzero(y == label)
        begin = rng.integers(0, max(1, len(at) - STRETCH + 1))
        rows.append(at[begin : begin + STRETCH])
    x = turned(windows.train_x) if phase_of(day) == 1 else windows.train_x
    return x[rows[0]], y[rows[0]], x[np.concatenate(rows[1:])]


Day = tuple[Array, Array, Array]


def recorded(people: tuple[Windows, Windows], seed: list[int]) -> list[Day]:
    """Return the recordings of a device on each day."""
    rng = np.random.default_rng(seed)
    return [day_of(people[d >= PASSED], d, rng) for d in range(1, DAYS + 1)]


def windows_of(people: tuple[Windows, Windows], days: Sequence[Day]) -> Windows:
    """Return the windows of some days. The test windows are those of every phase, in order."""
    x, y, unlabelled = (np.concatenate(parts) for parts in zip(*days, strict=True))
    own, other = people
    test_x = np.concatenate([own.test_x, turned(own.test_x), other.test_x])
    test_y = np.concatenate([own.test_y, own.test_y, other.test_y])
    return Windows(x, y, test_x, test_y, unlabelled)


def first_of(way: str, days: Sequence[Day]) -> int:
    """Return the place of the first of these days from which a device chooses its model."""
    if way == "since":
        return {0: 0, 1: TURNED - 1, 2: PASSED - 1}[phase_of(len(days))]
    first = 0
    if way == "drift":
        rows = [features(np.concatenate([x, unlabelled])) for x, _, unlabelled in days]
        for last in range(len(days)):
            is_known = last - first >= LEAST_DAYS
            if is_known and distance(np.concatenate(rows[first:last]), rows[last]) > APART:
                first = last
    return first


def accuracies(answers: Array, people: tuple[Windows, Windows]) -> list[float]:
    """Return the accuracy of a model in every phase, from its answers to the test windows."""
    own, other = people
    parts = np.split(answers.argmax(1), [own.num_test, 2 * own.num_test])
    pairs = zip(parts, (own.test_y, own.test_y, other.test_y), strict=True)
    return [float((answer == y).mean()) for answer, y in pairs]


def measure(name: str, seed: int, folder: Path) -> list[dict[str, Any]]:
    """Return the accuracy of every held-out device by day, in each of `WAYS`."""
    fleet, newcomers, finished = trained(name, seed, folder)
    reception = reception_of(fleet, finished, objective_for_fleet(fleet, SPEC, seed))
    names = sorted(newcomers)
    people = {
        d: (newcomers[d], newcomers[names[(place + 1) % len(names)]])
        for place, d in enumerate(names)
    }
    rows = []
    for place, d in enumerate(names):
        days = recorded(people[d], [seed, place])
        known: dict[tuple[int, int], list[float]] = {}
        by_way: dict[str, list[float]] = {}
        for way in list(WAYS)[1:]:
            by_way[way] = []
            chosen, chosen_by = (0, 0), 0
            for day in range(1, DAYS + 1):
                until = max(1, day - 1)  # a choice is in use from the next day on
                first = first_of(way, days[:until])
                count = sum(len(y) for _, y, _ in days[first:until])
                if not chosen_by or first != chosen[0] or count > (1 + GROWTH) * chosen_by:
                    chosen, chosen_by = (first, until), count
                if chosen not in known:
                    windows = windows_of(people[d], days[slice(*chosen)])
                    answers = reception.receive({d: windows})[d].answers
                    known[chosen] = accuracies(answers, people[d])
                by_way[way].append(known[chosen][phase_of(day)])
        for day in range(1, DAYS + 1):
            accuracy = {way: values[day - 1] for way, values in by_way.items()}
            frozen = known[0, 1][phase_of(day)]
            rows.append({"device": d, "day": day, "frozen": frozen, **accuracy})
    return rows


def table(runs: Mapping[str, list[dict[str, Any]]], ways: Sequence[str]) -> list[str]:
    """Return the lines of a table of mean accuracies in %, by data and days, in some of `WAYS`."""
    spans = {str(day): (day, day) for day in SHOWN} | {
        f"1 to {TURNED - 1}, as it came": (1, TURNED - 1),
        f"{TURNED} to {PASSED - 1}, turned": (TURNED, PASSED - 1),
        f"{PASSED} to {DAYS}, another person": (PASSED, DAYS),
    }
    lines = [
        f"| data | days | {' | '.join(WAYS[way] for way in ways)} |",
        "|---" * (2 + len(ways)) + "|",
    ]
    for name in DATA:
        of_name = [run for key, run in runs.items() if key.startswith(name)]
        rows = [row for run in of_name if ways[-1] in run[0] for row in run]
        for days, (first, last) in spans.items() if rows else ():
            cells = [
                f"{100 * fmean(row[way] for row in rows if first <= row['day'] <= last):.1f}"
                for way in ways
            ]
            lines.append(f"| {name} | {days} | {' | '.join(cells)} |")
    return lines


def text(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    runs = results["runs"]
    changed = ", ".join(key for key, run in runs.items() if "drift" in run[0])
    return "\n".join(
        [
            "## A month of a device",
            "",
            f"Machine: {results['machine']}. Made by `python -m benchmarks.month`; numbers in "
            f"`results/month.json`. A quarter of the devices comes when training is over. Each "
            f"day, a device records {STRETCHES} stretches of {STRETCH} windows, and one stretch "
            f"gets a label. On day {TURNED} its sensors are turned by 90 degrees; on day {PASSED} "
            f"they are put right and another person takes it over. Mean accuracy in % of "
            f"`personal` over the devices and up to {SEEDS} seeds, on test windows of that day's "
            f"person and position. `{WAYS['frozen']}`: the choice by the first day's windows. "
            f"`{WAYS['product']}`: a choice whenever labels have grown by a quarter. A choice is "
            f"in use from the next day on. Old windows stay.",
            "",
            *table(runs, ("frozen", "product")),
            "",
            f"What old windows cost, with the data and seeds {changed}. `{WAYS['since']}`: a "
            f"device that knows on which days it was turned and passed on chooses by later windows "
            f"alone. `{WAYS['drift']}`: the same, by a test of each day: its distance from the "
            f"days before (`edge_client.live.drift`) is above {APART:g}.",
            "",
            *table(runs, tuple(WAYS)),
        ]
    )


def main() -> None:
    """Measure, write the results, print the table."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--folder", type=Path, default=Path("runs/newcomers"))
    reader.add_argument("--seeds", type=int, default=SEEDS)
    reader.add_argument("--data", default=",".join(DATA))
    reader.add_argument("--out", type=Path, default=OUT)
    options = reader.parse_args()
    results = json.loads(options.out.read_text()) if options.out.exists() else {"runs": {}}
    results["machine"] = describe_machine()
    for name in options.data.split(","):
        for seed in range(options.seeds):
            if f"{name}-{seed}" not in results["runs"]:
                results["runs"][f"{name}-{seed}"] = measure(name, seed, options.folder)
                keep(results, options.out, OUT, "month", text(results))
    print(text(results))


if __name__ == "__main__":
    main()
