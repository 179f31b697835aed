"""Growth of costs with devices, parameters, models, groups to find and cores: ``python -m
benchmarks.curves``.

Every curve is measured on a few sizes in turns. It has the median, and the exponent of the power of
the size that fits the last half of them best: 0 is a constant cost, 1 a linear one. Writes
``benchmarks/results/curves.json``, a section of RESULTS.md and ``docs/images/costs.png``.
"""

import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch

from algorithms.composition import read_algorithm
from algorithms.core.contract import GroupingMemory
from algorithms.core.stack import Stack
from algorithms.groupings.distfl import DistFL
from algorithms.means.weighted import WeightedMean
from benchmarks.clustering import devices as surveyed
from benchmarks.results.report import describe_machine, put
from benchmarks.stopwatch import seconds_of
from shoal.reports.pictures import COLOURS, GRID
from simulation.engine.options import EngineOptions
from simulation.partition import make_fleet, read_partition
from simulation.settings import SimulationSettings
from simulation.simulate import simulate

ROOT = Path(__file__).parents[1]
OUT, PICTURE = (
    ROOT / "benchmarks" / "results" / "curves.json",
    ROOT / "docs" / "images" / "costs.png",
)
TURNS = 3
FLEET, COHORT, ROUNDS = 10_000, 200, 3


@dataclass(frozen=True)
class Curve:
    """`measure` gives seconds for a size; `why` says what growth is to be expected."""

    title: str
    size: str
    sizes: tuple[int, ...]
    measure: Callable[[int], float]
    why: str


def round_of(fleet: int, cohort: int = COHORT, workers: int = 0, windows: int = 16) -> float:
    """Seconds of one round of FedAvg, so many windows a device, assigned from the watches."""
    data = make_fleet("watch", read_partition(f"drawn:devices={fleet}:each={windows}"), None, 0)
    stamps: list[float] = []
    settings = SimulationSettings(read_algorithm("fedavg"), ROUNDS, 1, batch_size=16, cohort=cohort)
    simulate(
        data,
        settings,
        lambda _told: stamps.append(time.perf_counter()),
        engine=EngineOptions("native", workers),
    )
    return float(np.median(np.diff(stamps)))


def mean_of(models: int, parameters: int) -> float:
    """Seconds of the weighted mean of so many models of so many parameters."""
    arena = np.random.default_rng(0).standard_normal((models, parameters), np.float32)
    counts = np.arange(1, models + 1)
    return min(seconds_of(lambda: WeightedMean().combine(Stack(arena), counts, (), 0), 5))


def groups_of(count: int) -> float:
    """Seconds of DistFL's first round on the surveys of so many devices."""
    models, _ = surveyed(count, models=False)
    return min(seconds_of(lambda: DistFL().group(GroupingMemory(), models, None, 0), 1))


def per_update(workers: int) -> float:
    """Seconds for each update of a round by so many threads, 256 windows a device."""
    return round_of(FLEET, COHORT, workers, 256) / COHORT


CURVES = (
    Curve(
        "round, 200 devices invited",
        "devices in the fleet",
        (1_000, 10_000, 100_000),
        round_of,
        "a round costs what its cohort does",
    ),
    Curve(
        "round, fleet of 10,000",
        "devices invited",
        (50, 200, 800, 3_200),
        lambda n: round_of(FLEET, n),
        "linear: all of them train",
    ),
    Curve(
        "mean of 100 models",
        "parameters",
        (10**4, 10**5, 10**6, 4 * 10**6),
        lambda d: mean_of(100, d),
        "linear: every value is read once",
    ),
    Curve(
        "mean of models of 45,190 parameters",
        "models",
        (30, 100, 300, 1_000, 3_000),
        lambda n: mean_of(n, 45_190),
        "linear, likewise",
    ),
    Curve(
        "finding groups (DistFL)",
        "devices",
        (100, 1_000, 10_000, 100_000),
        groups_of,
        "tests look at 256 devices; the rest is one pass over the surveys",
    ),
    Curve(
        "one update",
        "threads",
        tuple(2**n for n in range((os.cpu_count() or 1).bit_length())),
        per_update,
        "a share for each core",
    ),
)


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The slope of the larger half of a curve, both axes logarithmic."""
    first = (len(sizes) - 1) // 2
    return float(np.polyfit(np.log(sizes[first:]), np.log(seconds[first:]), 1)[0])


def draw(results: dict[str, Any], path: Path) -> Path:
    """One panel for each curve, with a line of slope 1 through its last point."""
    figure, panels = plt.subplots(2, 3, figsize=(11, 6), layout="constrained")
    for at, (axes, curve) in enumerate(zip(panels.flat, results["curves"], strict=True)):
        sizes, ms = curve["sizes"], [1000 * s for s in curve["seconds"]]
        axes.loglog(sizes, ms, "o-", color=COLOURS[at % len(COLOURS)], lw=1.8, ms=4)
        slope = -1 if curve["size"] == "threads" else 1
        axes.loglog(
            sizes, [ms[-1] * (n / sizes[-1]) ** slope for n in sizes], ":", color="#888888", lw=1
        )
        axes.set_title(f"{curve['title']}: power {_power(curve)}", fontsize=10)
        if max(sizes) < 100:  # a few cores: the points themselves are the ticks
            axes.set_xticks(sizes, [str(n) for n in sizes])
            axes.set_yticks(ms, [f"{value:.2g}" for value in ms])
            axes.minorticks_off()
        axes.set(xlabel=curve["size"], ylabel="ms")
        axes.grid(color=GRID, which="both")
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("What grows with what (dotted: in proportion)", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        f"Machine: {results['machine']}. Medians of {TURNS} turns.",
        "",
        "| cost | with | ms | power | |",
        "|---|---|---|---|---|",
    ]
    for curve in results["curves"]:
        points = ", ".join(
            f"{_ms(s)} ({n:,})" for n, s in zip(curve["sizes"], curve["seconds"], strict=True)
        )
        lines.append(
            f"| {curve['title']} | {curve['size']} | {points} | {_power(curve)} | {curve['why']} |"
        )
    return "\n".join(lines)


def _power(curve: dict[str, Any]) -> str:
    return f"{round(curve['exponent'], 2) + 0.0:.2f}"  # no -0.00


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.0f}" if seconds >= 0.1 else f"{1000 * seconds:.2g}"


def main() -> None:
    """Measure in turns, write the results, draw, print the table."""
    torch.set_num_threads(os.cpu_count() or 1)
    times: dict[tuple[int, int], list[float]] = {}
    for _ in range(TURNS):
        for at, curve in enumerate(CURVES):
            for size in curve.sizes:
                times.setdefault((at, size), []).append(curve.measure(size))
    curves = []
    for at, curve in enumerate(CURVES):
        seconds = [statistics.median(times[at, size]) for size in curve.sizes]
        power = exponent(curve.sizes, seconds)
        curves.append(
            {
                "title": curve.title,
                "size": curve.size,
                "why": curve.why,
                "sizes": curve.sizes,
                "seconds": seconds,
                "exponent": power,
            }
        )
    results = {"machine": describe_machine(), "curves": curves}
    OUT.write_text(json.dumps(results, indent=1) + "\n")
    put(
        "curves",
        "## How costs grow\n\n![What grows with what](../docs/images/costs.png)\n\n"
        f"{table(results)}",
    )
    draw(results, PICTURE)
    print(table(results))


if __name__ == "__main__":
    main()
