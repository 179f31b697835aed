"""``python -m benchmarks.batched [DEVICE]``: devices trained together on one accelerator beside one
after the other on the processor.

DEVICE: cuda where torch finds it, else cpu. Workload: devices of 256 windows of 9 x 128 in six
classes, the model ``cnn2-bn``, batches of 32, one epoch: a round of `fedavg`, and the personal
model's of `ditto`. The wall clock of whole trainings from arrays to arrays, so that what is copied
to the accelerator and back counts, but the examples only once; ways take turns, medians are
printed.
"""

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch

from algorithms.core.contract import Objective
from algorithms.models.registry import make_model
from algorithms.registry import make_objective, read_algorithm
from export.describe import to_numpy
from simulation.engine.graphs.batched import BatchedGraphs, Request
from simulation.engine.graphs.eager import EagerGraphs
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors
from wire.bundle import Window

CHANNELS, TIME, CLASSES, WINDOWS, BATCH, DEVICES = 9, 128, 6, 256, 32, 128
TOGETHER = (8, 32, 128)


def one_by_one(graphs: EagerGraphs, request: Request) -> Tensors:
    """One device's training batch by batch, as the executor makes it."""
    tensors, hyper = (
        dict(request.tensors),
        {names.hyper(name): value for name, value in request.hyper.items()},
    )
    for chosen in request.batches or ():
        batch = {names.batch(name): value[chosen] for name, value in request.batch.items()}
        outputs = graphs.run(request.graph, {**tensors, **batch, **hyper})
        tensors |= names.part(outputs, names.NEXT)
    return tensors


def requests_of(objective: Objective, graph: str) -> list[Request]:
    """What the devices ask for: all start from the same model, each has windows of its own."""
    rng = np.random.default_rng(0)
    tensors: Tensors = to_numpy(objective.initial())
    hyper: Mapping[str, Array] = {
        name: np.asarray(value, np.float32) for name, value in objective.hyper.items()
    }
    return [
        Request(
            graph,
            tensors,
            {
                "x": rng.standard_normal((WINDOWS, CHANNELS, TIME), np.float32),
                "y": rng.integers(0, CLASSES, WINDOWS),
            },
            dict(hyper),
            np.array_split(rng.permutation(WINDOWS), WINDOWS // BATCH),
        )
        for _ in range(DEVICES)
    ]


def measure(ways: Mapping[str, Callable[[], int]], turns: int) -> dict[str, float]:
    """Seconds per update of each way, the median over turns."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(turns + 1):
        for way, work in ways.items():
            began = time.perf_counter()
            count = work()
            if turn:  # the first is for caches and kernels to be there
                times[way].append((time.perf_counter() - began) / count)
    return {way: statistics.median(spent) for way, spent in times.items()}


def ways_of(objective: Objective, graph: str, device: torch.device) -> dict[str, Callable[[], int]]:
    """By name, what trains some devices and returns how many."""
    requests, alone = requests_of(objective, graph), EagerGraphs(objective)
    batched = BatchedGraphs(objective, (CHANNELS, TIME), device)
    ways: dict[str, Callable[[], int]] = {
        "one by one, cpu": lambda: len([one_by_one(alone, r) for r in requests[:8]])
    }
    return ways | {
        f"{count} together, {device}": partial(_together, batched, requests[:count])
        for count in TOGETHER
    }


def _together(graphs: BatchedGraphs, requests: list[Request]) -> int:
    return len(graphs.together(requests))


def main(name: str = "", turns: int = 3) -> None:
    """Prints updates (trainings of one device) per second of every way."""
    torch.set_num_threads(1)
    device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    for algorithm, graph in (("fedavg", "step"), ("ditto", "personal")):
        torch.manual_seed(0)
        model = make_model(
            "cnn2-bn", Window(tuple("abcdefghi"), TIME, TIME), CLASSES, torch.ones(CHANNELS)
        )
        spent = measure(
            ways_of(make_objective(read_algorithm(algorithm), model), graph, device), turns
        )
        for way, seconds in spent.items():
            print(
                f"{algorithm:8s}{way:20s}{1 / seconds:8.1f} "
                f"updates/s{spent['one by one, cpu'] / seconds:8.2f}x"
            )


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else "")
