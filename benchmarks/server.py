"""Cost of combining models: every mean on N models of one size, beside a plain read of them and
other systems' code.

Run as ``python -m benchmarks.server``; writes ``benchmarks/results/server.json``. The candidates
are measured in turns. The results are medians, and ratios are medians over the turns, so that other
load on the machine counts for both sides alike.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.spatial.distance import cdist
from scipy.stats import trim_mean
from threadpoolctl import threadpool_limits

from algorithms.core.contract import Mean, Slice
from algorithms.core.stack import Stack
from algorithms.means.credit import Credit
from algorithms.means.gra import GroupwiseRobust
from algorithms.means.irls import ResidualReweighting
from algorithms.means.krum import Krum, MultiKrum, krum_scores
from algorithms.means.median import Median, TrimmedMean
from algorithms.means.robust import RobustMean
from algorithms.means.streaming import StreamingMean
from algorithms.means.weighted import UniformMean, WeightedMean
from benchmarks.peers.environments import install, python_of
from benchmarks.peers.systems import choose
from benchmarks.results.report import keep
from wire.arrays import names
from wire.arrays.tensors import Array

OUT = Path(__file__).parent / "results" / "server.json"
SHAPES = (
    (32, 9, 5),
    (32,),
    (32,),
    (32,),
    (64, 32, 5),
    (64,),
    (64,),
    (64,),
    (64, 512),
    (64,),
    (6, 64),
    (6,),
)
"""The layers of the convolutional network for UCI HAR: 45,190 parameters."""
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)
LAYOUT = tuple(
    Slice(names.shared(str(i)), at, at + int(np.prod(shape)), shape)
    for i, (shape, at) in enumerate(
        zip(SHAPES, np.cumsum([0, *(int(np.prod(s)) for s in SHAPES)]).tolist(), strict=False)
    )
)
NUMBERS = (100, 1_000, 10_000)
THREADS = 2
READ = "read once"
LONGEST = 20.0
"""Seconds that one call may be expected to take, from what it took with fewer models; what takes
longer is left out, and the table says so."""
MEANS: dict[str, Mean] = {
    "weighted": WeightedMean(),
    "uniform": UniformMean(),
    "median": Median(),
    "robust": RobustMean(),
    "trimmed": TrimmedMean(),
    "krum": Krum(),
    "multi-krum": MultiKrum(),
    "credit": Credit(),
    "gra": GroupwiseRobust(),
    "irls": ResidualReweighting(),
}
GROWTH = {"krum": 2, "multi-krum": 2, "credit": 2, "gra": 2, "irls": 2, "plain krum": 2}
"""Powers of N by which time grows, where not 1: for the guess whether a call is too long."""


def make_arena(num: int) -> Array:
    """Models (N, D) float32 that differ by a tenth of their values around one."""
    rng = np.random.default_rng(0)
    base = 0.2 * rng.standard_normal(SIZE, dtype=np.float32)
    arena = np.empty((num, SIZE), np.float32)
    for row in arena:
        np.add(base, 0.02 * rng.standard_normal(SIZE, dtype=np.float32), out=row)
    return arena


def read_once(arena: Array) -> None:
    """The bound: every value is read from memory once and compared with the largest so far."""
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(np.max, np.array_split(arena, THREADS)))


def measure_flower(arena: Array, turns: int, venvs: Path) -> dict[str, dict[str, float]]:
    """Milliseconds of Flower's own aggregation of these models, in its own environment, which is
    made where it is missing."""
    (system,) = choose(["flower"])
    install(system, venvs, lambda line: print(line[:120], file=sys.stderr), 900.0)
    counts = np.random.default_rng(1).integers(50, 500, len(arena))
    with tempfile.NamedTemporaryFile(prefix="shoal-arena-") as file:
        arena.tofile(file.name)
        script = Path(__file__).parent / "peers" / "flower_aggregate.py"
        told = [json.dumps(value) for value in (SHAPES, counts.tolist(), turns)]
        command = [
            str(python_of(system, venvs).absolute()),
            "-W",
            "ignore",
            str(script),
            file.name,
            *told,
        ]
        threads = {
            "OMP_NUM_THREADS": str(THREADS),
            "OPENBLAS_NUM_THREADS": str(THREADS),
            "FLWR_TELEMETRY_ENABLED": "0",
        }
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            timeout=900,
            env=os.environ | threads,
        )
    found = json.loads(done.stdout.splitlines()[-1])
    return {
        f"Flower {found['version']}, {way}": {"ms": found[way], "turns": turns}
        for way in ("records", "parameters")
    }


def plain_krum(arena: Array) -> Array:
    """Krum with distances made one by one."""
    squared = cdist(arena, arena, "sqeuclidean")
    chosen: Array = arena[int(np.argmin(krum_scores(squared, (len(arena) - 3) // 2)))]
    return chosen


def streaming(arena: Array, counts: Sequence[int]) -> Array:
    """The weighted mean of models that come one at a time."""
    mean = StreamingMean(arena.shape[1])
    for row, count in zip(arena, counts, strict=True):
        mean.add(row, count)
    return mean.result()


def contestants(arena: Array) -> dict[str, Callable[[], Any]]:
    """Return the functions to measure on an arena, by name: every mean, and after ``plain`` the
    obvious form."""
    counts = np.random.default_rng(1).integers(50, 500, len(arena))
    half = np.flatnonzero(np.random.default_rng(2).permutation(len(arena)) % 2)

    def of(mean: Mean) -> Callable[[], Any]:
        return lambda: mean.combine(Stack(arena), counts, LAYOUT, 0).flat

    made: dict[str, Callable[[], Any]] = {READ: lambda: read_once(arena)}
    made |= {name: of(mean) for name, mean in MEANS.items()}
    made["weighted, half of the rows"] = lambda: (
        WeightedMean().combine(Stack(arena, half), counts[half], LAYOUT, 0).flat
    )
    made["weighted, streaming"] = lambda: streaming(arena, counts.tolist())
    made["plain weighted"] = lambda: np.average(arena, axis=0, weights=counts)
    made["plain median"] = lambda: np.median(arena, axis=0)
    made["plain trimmed"] = lambda: trim_mean(arena, 0.1, axis=0)
    made["plain krum"] = lambda: plain_krum(arena)
    return made


def measure(num: int, turns: int, known: dict[str, float]) -> dict[str, dict[str, float]]:
    """Milliseconds and the ratio to `READ` of each contestant. `known` has seconds per N ** growth
    of smaller fleets, and gets ours."""
    arena = make_arena(num)
    works = {
        name: work
        for name, work in contestants(arena).items()
        if known.get(name, 0.0) * num ** GROWTH.get(name, 1) <= LONGEST
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    order = np.random.default_rng(num)
    for turn in range(turns):
        for name in order.permutation(
            list(works)
        ).tolist():  # what one leaves behind, in caches and in waiting threads, meets all alike
            work = works[name]
            if turn and min(times[name]) > LONGEST / 10:
                continue  # once is enough of what takes seconds
            began = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - began)
    known |= {name: min(seconds) / num ** GROWTH.get(name, 1) for name, seconds in times.items()}
    return {
        name: {
            "ms": round(1000 * statistics.median(seconds), 3),
            "of_read": round(
                statistics.median(s / r for s, r in zip(seconds, times[READ], strict=False)), 2
            ),
            "turns": len(seconds),
        }
        for name, seconds in times.items()
    }


def table(results: dict[str, Any]) -> str:
    """The results as a Markdown table: milliseconds and, in brackets, how many times a plain read
    of the models."""
    numbers = list(results["models"])
    rows = [
        f"| | {' | '.join(f'N = {int(n):,}' for n in numbers)} |",
        f"|---|{'---|' * len(numbers)}",
    ]
    for name in results["models"][numbers[0]]:
        found = [results["models"][n].get(name) for n in numbers]
        cells = [
            "{:,.1f} ({:.1f})".format(c["ms"], c["of_read"]) if c else "left out" for c in found
        ]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, write the results and print their table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numbers", type=int, nargs="+", default=NUMBERS, help="how many models")
    parser.add_argument(
        "--turns", type=int, default=7, help="how often each is measured; what takes seconds, once"
    )
    parser.add_argument(
        "--venvs", type=Path, default=None, help="folder of Flower's environment, to measure it too"
    )
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args(arguments)
    known: dict[str, float] = {}
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        with threadpool_limits(THREADS):
            models = {str(num): measure(num, asked.turns, known) for num in sorted(asked.numbers)}
        if asked.venvs:
            for num, found in models.items():
                flower = measure_flower(make_arena(int(num)), asked.turns, asked.venvs)
                found.update(
                    {
                        name: made | {"of_read": round(made["ms"] / found[READ]["ms"], 2)}
                        for name, made in flower.items()
                    }
                )
    finally:
        torch.set_num_threads(before)
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": THREADS,
    }
    versions = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
    }
    results = {
        "parameters": SIZE,
        "machine": machine | {"load": os.getloadavg()[0]},
        "versions": versions,
        "models": models,
    }
    keep(
        results, asked.out, OUT, "server", f"## Combining models on the server\n\n{table(results)}"
    )
    print(table(results))
    return results


if __name__ == "__main__":
    main(sys.argv[1:])
