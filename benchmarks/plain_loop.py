"""``python -m benchmarks.plain_loop``: steps of usual models that torch runs, beside a plain loop.

Workload: batches of 32, FedAvg with momentum, one thread. The steps are those of the backend
`eager`, which takes every model that the engine in C++ cannot run; the plain loop is what a user
would write, with `torch.optim.SGD`. Both take turns, and a time is the least of five, in CPU
milliseconds a step. ``--before TREE`` measures another checkout as well, in its own process and in
the same turns.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from algorithms.composition import make_objective, read_algorithm
from algorithms.models.adoption.adopt import adopt
from algorithms.models.adoption.dropout import DROPOUTS
from algorithms.models.classifier import Scale
from benchmarks.results.report import describe_machine, put
from benchmarks.usual_models import USUAL
from export.describe import example_inputs
from simulation.engine.graphs.eager import EagerGraphs
from wire.arrays import names

CLASSES, BATCH, RATE, MOMENTUM = 6, 32, 0.01, 0.9
TURNS, LEAST_S = 5, 0.4
MODELS = [name for name, usual in USUAL.items() if usual.task == "classification"]


def ways_of(name: str) -> tuple[Callable[[int], None], Callable[[int], None]]:
    """Return functions that make a number of steps: those of `eager`, and those of a plain loop."""
    usual, rng = USUAL[name], np.random.default_rng(0)
    torch.manual_seed(1)
    model: nn.Module = usual.make(usual.shape, CLASSES)
    for layer in model.modules():
        if isinstance(layer, DROPOUTS):
            layer.p = 0.0
    shape = (8 * BATCH, *usual.shape)
    x: np.ndarray = rng.normal(size=shape).astype(np.float32)
    if usual.vocabulary:
        x = rng.integers(usual.vocabulary, size=shape)
    y = rng.integers(CLASSES, size=len(x))
    of_ids = bool(usual.vocabulary)
    scale = nn.Identity() if of_ids else Scale(torch.ones(usual.shape[0]), len(usual.shape) - 1)
    adopted = adopt(name, model, usual.shape, CLASSES, scale, usual.vocabulary)
    objective = make_objective(read_algorithm("fedavg"), adopted)
    inputs = example_inputs(objective, usual.shape, BATCH)
    inputs |= {
        names.hyper("lr"): torch.tensor(RATE),
        names.hyper("momentum"): torch.tensor(MOMENTUM),
    }
    arrays = {k: v.numpy() for k, v in inputs.items() if k not in (names.X, names.Y)}
    graphs = EagerGraphs(objective)

    def batches(steps: int) -> list[np.ndarray]:
        starts = (BATCH * i % len(x) for i in range(steps))
        return [np.arange(start, start + BATCH) for start in starts]

    def by_shoal(steps: int) -> None:
        graphs.train("step", arrays, x, y, batches(steps), {})

    whole = (torch.from_numpy(x), torch.from_numpy(y))
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(weights, RATE, MOMENTUM)

    def plainly(steps: int) -> None:
        model.train()
        for chosen in map(torch.from_numpy, batches(steps)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(whole[0][chosen]), whole[1][chosen])
            loss.backward()
            optimizer.step()
            loss.item()

    return by_shoal, plainly


def measure(name: str) -> dict[str, float]:
    """Return CPU milliseconds of a step by each way."""
    ways = dict(zip(("eager", "plain"), ways_of(name), strict=True))
    best = dict.fromkeys(ways, float("inf"))
    for run in ways.values():
        run(2)
    for _ in range(TURNS):
        for way, run in ways.items():
            steps, begin = 0, time.process_time()
            while time.process_time() - begin < LEAST_S:
                run(8)
                steps += 8
            best[way] = min(best[way], 1000 * (time.process_time() - begin) / steps)
    return best


def elsewhere(name: str, tree: Path) -> float:
    """Return the milliseconds of a step of `eager` in another checkout."""
    code = f"from benchmarks.plain_loop import *; print(json.dumps(measure({name!r})))"
    copy = tree / "benchmarks" / Path(__file__).name
    copy.write_bytes(Path(__file__).read_bytes())
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"import torch; torch.set_num_threads(1); {code}"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(json.loads(run.stdout.splitlines()[-1])["eager"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all models, print the table, and put it into RESULTS.md."""
    parser = argparse.ArgumentParser(prog="benchmarks.plain_loop")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, metavar="MODEL")
    parser.add_argument("--before", type=Path, help="another checkout, measured as well")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    head = ["model", "plain loop, ms", "eager, ms", "eager / plain"]
    lines = [*([*head, "eager before, ms"] if options.before else head)]
    rows = ["| " + " | ".join(lines) + " |", "|---" * len(lines) + "|"]
    for name in options.models:
        best = measure(name)
        cells = [
            name,
            f"{best['plain']:.2f}",
            f"{best['eager']:.2f}",
            f"{best['eager'] / best['plain']:.2f}",
        ]
        cells += [f"{elsewhere(name, options.before):.2f}"] if options.before else []
        rows.append("| " + " | ".join(cells) + " |")
        print(rows[-1], flush=True)
    note = (
        f"Machine: {describe_machine()}. A step of 32 examples on one thread, the least of {TURNS} "
        "turns. Made by `python -m benchmarks.plain_loop`."
    )
    if options.models == MODELS:
        put("plain-loop", "\n\n".join(("## Steps beside a plain loop", note, "\n".join(rows))))


if __name__ == "__main__":
    main()
