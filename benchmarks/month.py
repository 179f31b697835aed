"""A month of a device: ``python -m benchmarks.month``.

A quarter of the watches is held out of training. Each then records for `DAYS` days, and each day
one stretch of its windows gets a label. On day `TURNED` its sensors are turned, and on day `PASSED`
they are put right and another person takes the device over. Every device keeps all that it has
recorded. It chooses its model by the service's rule (``aggregator.fleet.desired.GROWTH``). Trained
fleets lie in ``--folder``. Writes ``benchmarks/results/month.json`` and a section of RESULTS.md.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from aggregator.fleet.desired import GROWTH
from benchmarks.newcomers import SPEC, reception_of, trained
from benchmarks.results.report import describe_machine, keep
from edge_client.core.ports import Windows
from simulation.objective import objective_for_fleet
from wire.arrays.tensors import Array

OUT = Path(__file__).parent / "results" / "month.json"
DAYS, TURNED, PASSED, SEEDS = 28, 11, 21, 3
STRETCH, STRETCHES = 4, 8
"""Windows of a stretch, and stretches of a day; one of these gets a label."""
SHOWN = (1, 2, 5, 10, 11, 12, 15, 20, 21, 22, 25, 28)
"""Days of the table."""
WAYS = {"frozen": "frozen after day 1", "product": "the product"}


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


def recorded(
    people: tuple[Windows, Windows], last_day: int, seed: list[int]
) -> tuple[Windows, list[int]]:
    """Return the windows of a device after a day, and the number of its labels after each day.

    The test windows are those of every phase, one after the other.
    """
    rng = np.random.default_rng(seed)
    days = [day_of(people[d >= PASSED], d, rng) for d in range(1, last_day + 1)]
    x, y, unlabelled = (np.concatenate(parts) for parts in zip(*days, strict=True))
    own, other = people
    test_x = np.concatenate([own.test_x, turned(own.test_x), other.test_x])
    test_y = np.concatenate([own.test_y, own.test_y, other.test_y])
    counts = np.cumsum([len(labels) for _, labels, _ in days]).tolist()
    return Windows(x, y, test_x, test_y, unlabelled), counts


def accuracies(answers: Array, people: tuple[Windows, Windows]) -> list[float]:
    """Return the accuracy of a model in every phase, from its answers to the test windows."""
    own, other = people
    parts = np.split(answers.argmax(1), [own.num_test, 2 * own.num_test])
    pairs = zip(parts, (own.test_y, own.test_y, other.test_y), strict=True)
    return [float((answer == y).mean()) for answer, y in pairs]


def measure(seed: int, folder: Path) -> list[dict[str, Any]]:
    """Return the accuracy of every held-out device by day, in each of `WAYS`."""
    fleet, newcomers, finished = trained("watch", seed, folder)
    reception = reception_of(fleet, finished, objective_for_fleet(fleet, SPEC, seed))
    names = sorted(newcomers)
    people = {
        d: (newcomers[d], newcomers[names[(place + 1) % len(names)]])
        for place, d in enumerate(names)
    }
    rows = []
    for place, d in enumerate(names):
        counts = recorded(people[d], DAYS, [seed, place])[1]
        models = list[list[float]]()
        chosen_by = 0
        for day in range(1, DAYS + 1):
            until = max(1, day - 1)  # a choice is in use from the next day on
            if not models or counts[until - 1] > (1 + GROWTH) * chosen_by:
                chosen_by = counts[until - 1]
                result = reception.receive({d: recorded(people[d], until, [seed, place])[0]})[d]
                models.append(accuracies(result.answers, people[d]))
            phase = phase_of(day)
            accuracy = {"frozen": models[0][phase], "product": models[-1][phase]}
            rows.append({"device": d, "day": day, **accuracy})
    return rows


def mean_of(runs: Mapping[str, list[dict[str, Any]]], way: str, first: int, last: int) -> float:
    """Return the mean accuracy in % over all devices of the days from `first` to `last`."""
    rows = [row for run in runs.values() for row in run if first <= row["day"] <= last]
    return 100 * fmean(row[way] for row in rows)


def text(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    runs = results["runs"]
    spans = {
        f"1 to {TURNED - 1}, as it came": (1, TURNED - 1),
        f"{TURNED} to {PASSED - 1}, turned": (TURNED, PASSED - 1),
        f"{PASSED} to {DAYS}, another person": (PASSED, DAYS),
    }
    lines = [
        "## A month of a device",
        "",
        f"Machine: {results['machine']}. Made by `python -m benchmarks.month`; numbers in "
        f"`results/month.json`. A quarter of the watches comes when training is over. Each day, a "
        f"device records {STRETCHES} stretches of {STRETCH} windows, and one stretch gets a label. "
        f"On day {TURNED} its sensors are turned by 90 degrees; on day {PASSED} they are put right "
        f"and another person takes it over. Mean accuracy in % of `personal` over the devices and "
        f"{len(runs)} seeds, on test windows of that day's person and position. `{WAYS['frozen']}`:"
        f" the choice by the first day's windows. `{WAYS['product']}`: a choice whenever labels "
        f"have grown by a quarter. A choice is in use from the next day on. Old windows stay.",
        "",
        f"| days | {' | '.join(WAYS.values())} |",
        "|---" * (1 + len(WAYS)) + "|",
    ]
    days = {str(day): (day, day) for day in SHOWN}
    for name, (first, last) in {**days, **spans}.items():
        cells = [f"{mean_of(runs, way, first, last):.1f}" for way in WAYS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, write the results, print the table."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--folder", type=Path, default=Path("runs/newcomers"))
    reader.add_argument("--seeds", type=int, default=SEEDS)
    reader.add_argument("--out", type=Path, default=OUT)
    options = reader.parse_args()
    results: dict[str, Any] = {"machine": describe_machine(), "runs": {}}
    for seed in range(options.seeds):
        results["runs"][f"watch-{seed}"] = measure(seed, options.folder)
        keep(results, options.out, OUT, "month", text(results))
    print(text(results))


if __name__ == "__main__":
    main()
