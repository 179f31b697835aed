"""Time of a training step by a backend, measured before a run to choose one."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from algorithms.objectives.supervised import Supervised
from export.describe import example_inputs, parts_of
from host.threads import one_thread
from simulation.engine.graphs.batched import BatchedGraphs, Request
from simulation.engine.graphs.eager import EagerGraphs
from wire.arrays import names

STEPS, TURNS = 4, 3
"""Maximum steps of a measured training, and trainings of which the shortest counts."""


@dataclass(frozen=True)
class Workload:
    """Training of a run, as far as the choice of its backend and its workers depends on it."""

    cohort_size: int
    num_examples: int
    """Mean number of a device's training examples."""
    batch_size: int
    steps: int
    """Estimated training steps of all devices in the run."""


def step_s(
    graphs: EagerGraphs,
    objective: Supervised,
    window: tuple[int, ...],
    graph: str,
    workload: Workload,
    together: int,
) -> float:
    """Return the seconds of a step per device when `together` devices train at the same time.

    For backend batched this is measured. For the others, one device's training is measured on one
    core, and divided by `together`.
    """
    size = min(workload.batch_size, workload.num_examples)
    steps = min(STEPS, workload.num_examples // size)
    inputs = example_inputs(objective, window, workload.num_examples)
    tensors, batch, hyper = (
        {name: value.numpy() for name, value in part.items()} for part in parts_of(inputs)
    )
    batches = np.split(np.arange(steps * size), steps)
    if isinstance(graphs, BatchedGraphs):
        requests = [Request(graph, tensors, batch, hyper, batches)] * together
        spent_s = _least_s(lambda: graphs.together(requests))
    else:
        named = {names.hyper(name): value for name, value in hyper.items()}
        with one_thread():
            spent_s = _least_s(
                lambda: graphs.train(graph, tensors, batch["x"], batch["y"], batches, named)
            )
    return spent_s / (steps * together)


def _least_s(call: Callable[[], Any]) -> float:
    call()  # warm-up: it loads libraries and allocates memory
    spent = []
    for _ in range(TURNS):
        began = time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
    return min(spent)
