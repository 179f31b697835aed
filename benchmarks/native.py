"""``python -m benchmarks.native``: the native engine beside a plain loop in torch, in turns, one
device's training at a time.

Workload: two convolutions of 5 with 32 and 64 channels, BatchNorm, ReLU, max-pool 2, average-pool
4, linear layers of 64 and 6 (45,190 parameters); 256 windows of 9 x 128, batches of 32, one epoch.
A turn's time is the CPU time of its thread for one thread, and the wall clock of the slower thread
for two. Writes ``benchmarks/results/native.json`` and its section of ``benchmarks/RESULTS.md``.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from algorithms.models.classifier import Classifier, Scale
from algorithms.models.reading.network import network_of
from benchmarks.results.report import describe_machine, put
from host.native.plan import available_targets
from host.native.trainer import NativeTrainer

RESULTS = Path(__file__).parent / "results" / "native.json"

CHANNELS, TIME, CLASSES, WINDOWS, BATCH, LR, MOMENTUM = 9, 128, 6, 256, 32, 0.01, 0.9
CONVOLUTIONS, LINEARS = ((9, 32, 128), (32, 64, 64)), ((512, 64), (64, 6))
GFLOP = (
    WINDOWS
    * (
        sum(2 * 5 * i * o * t * (2 if i == CHANNELS else 3) for i, o, t in CONVOLUTIONS)
        + sum(6 * i * o for i, o in LINEARS)
    )
    / 1e9
)
"""Operations of one update: forward, gradient of the weights, and gradient of the input except for
the first layer."""


def make_model() -> Classifier:
    """The workload's model."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs, _ in CONVOLUTIONS:
        layers += [
            nn.Conv1d(inputs, outputs, 5, padding=2),
            nn.BatchNorm1d(outputs),
            nn.ReLU(),
            nn.MaxPool1d(2),
        ]
    layers += [nn.AvgPool1d(4), nn.Flatten(), nn.Linear(512, 64), nn.ReLU()]
    return Classifier(Scale(torch.ones(CHANNELS)), nn.Sequential(*layers), nn.Linear(64, CLASSES))


def measure(turns: int) -> list[dict[str, Any]]:
    """Updates per second of every way, the median and the best of the turns, for one thread and for
    two."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((WINDOWS, CHANNELS, TIME), np.float32)
    y = rng.integers(0, CLASSES, WINDOWS)
    order, bounds = rng.permutation(WINDOWS), np.arange(0, WINDOWS + 1, BATCH)
    model = make_model()
    network = network_of(model, (CHANNELS, TIME))
    start = np.concatenate([model.state_dict()[n].numpy().ravel() for n in network.shapes])

    def torch_update() -> None:
        own = make_model().train()
        optimizer = torch.optim.SGD(own.parameters(), LR, MOMENTUM)
        for first in range(0, WINDOWS, BATCH):
            chosen = order[first : first + BATCH]
            optimizer.zero_grad()
            F.cross_entropy(
                own(torch.from_numpy(x[chosen])), torch.from_numpy(y[chosen])
            ).backward()
            optimizer.step()

    def native_update(trainer: NativeTrainer) -> Callable[[], None]:
        return lambda: (trainer.train(start.copy(), None, x, y, order, bounds, LR, MOMENTUM), None)[
            1
        ]

    ways = {
        f"native, {target}": native_update(NativeTrainer(network, target=target))
        for target in available_targets()
    }
    ways["torch"] = torch_update
    rows = []
    for num_threads in (1, 2):
        times: dict[str, list[float]] = {name: [] for name in ways}
        with ThreadPoolExecutor(num_threads) as pool:
            for _ in range(turns):
                for name, update in ways.items():
                    repeats = 1 if num_threads == 1 or name == "torch" else 5
                    clock = time.thread_time if num_threads == 1 else time.perf_counter

                    def work(
                        update: Callable[[], None] = update,
                        repeats: int = repeats,
                        clock: Callable[[], float] = clock,
                    ) -> float:
                        began = clock()
                        for _ in range(repeats):
                            update()
                        return (clock() - began) / repeats

                    times[name].append(
                        max(
                            future.result()
                            for future in [pool.submit(work) for _ in range(num_threads)]
                        )
                        / num_threads
                    )
        for name, spent in times.items():
            median, best = (1 / pick(spent) for pick in (statistics.median, min))
            rows.append(
                {
                    "threads": num_threads,
                    "name": name,
                    "updates_per_s": median,
                    "best": best,
                    "gflop_per_s": median * GFLOP,
                }
            )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown; torch's speed on as many threads is 1."""
    plain = {row["threads"]: row["updates_per_s"] for row in rows if row["name"] == "torch"}
    lines = [
        "| threads | | updates/s | best turn | GFLOP/s | x torch |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        numbers = f"{row['updates_per_s']:.1f} | {row['best']:.1f} | {row['gflop_per_s']:.0f}"
        lines.append(
            f"| {row['threads']} | {row['name']} | {numbers} | "
            f"{row['updates_per_s'] / plain[row['threads']]:.2f} |"
        )
    return "\n".join(lines)


def main(turns: int = 40) -> None:
    """Measure, print and keep."""
    rows, machine = measure(turns), describe_machine()
    print(table(rows))
    RESULTS.write_text(
        json.dumps({"machine": machine, "turns": turns, "rows": rows}, indent=1) + "\n"
    )
    put(
        "native",
        f"## The native engine\n\nMachine: {machine}. One device's training at a time; medians of "
        f"{turns} turns.\n\n{table(rows)}",
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
