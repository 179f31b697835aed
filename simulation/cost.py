"""Estimated cost of a run for a phone, from counts, a measurement and named assumptions.

Counted in the run: the windows that a device trains on in a round, and the bytes of its messages.
Measured here: the seconds of a training step, with torch on one thread. Assumed: the speed and
power of a phone. The numbers and their reasons are those of `simulation.timing.profiles`; none of
them is measured on a phone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from time import perf_counter
from typing import NamedTuple

from aggregator.view.round_record import RoundRecord
from algorithms.objectives.supervised import Supervised
from export.describe import example_inputs, to_numpy
from host.threads import one_thread
from simulation.engine.graphs.eager import EagerGraphs
from wire.errors import ShoalError
from wire.verbs import Train, Verb

TURNS = 5
"""Number of timed steps, after one that is not timed.

The fastest one counts, since other programs only slow steps down.
"""
DOWN_BYTES_PER_S, UP_BYTES_PER_S = 1e6, 5e5
"""Network of a median phone, as in profiles `phones`: 8 Mbit/s down, 4 up."""
BATTERY_J = 15 * 3600
COMPUTE_W, RADIO_W = 5.0, 1.0
"""Power while computing and while transferring, for a battery of 15 Wh (`BATTERY_J`).

The battery and 5 W are those of profiles `phones`; 1 W for the radio is ours.
"""
SPEEDS = {"as fast as this machine's core": 1.0, "3 times slower": 3.0, "10 times slower": 10.0}


@dataclass(frozen=True)
class RoundWork:
    """Work of a device in a round, as means over devices and rounds, and the time of a step."""

    windows: float
    """Windows trained on, with repetitions."""
    steps: int
    batch_size: int
    bytes_up: float
    bytes_down: float
    step_s: float
    """Seconds of a step on a whole batch, on one thread of this machine."""
    rounds: int


class Estimate(NamedTuple):
    """Estimated cost of a round and of the run for a phone of a certain speed."""

    speed: str
    compute_s: float
    transfer_s: float
    battery_percent: float
    """Percent of a full battery spent in a round."""
    run_percent: float
    """Percent of a full battery spent in all rounds."""


def count(
    records: Sequence[RoundRecord],
    verbs: Sequence[Verb],
    objective: Supervised,
    window: tuple[int, ...],
) -> RoundWork | None:
    """Count the work of the rounds of training, and time one training step.

    The timed graph is the first one that `verbs` train. Returns None if nothing was trained, or if
    the graph cannot run by itself.
    """
    training_rounds = [
        (r, len(r.evaluated)) for r in records if r.phase == "training" and r.evaluated
    ]
    devices = sum(n for _, n in training_rounds)
    windows = sum(r.trained.num_examples for r, _ in training_rounds)
    train = next((verb for verb in verbs if isinstance(verb, Train)), None)
    if not windows or train is None:
        return None
    graphs = EagerGraphs(objective)
    inputs = to_numpy(example_inputs(objective, window, train.batch_size))
    spans = []
    with one_thread():
        for _ in range(1 + TURNS):
            began_s = perf_counter()
            try:
                graphs.run(train.graph, inputs)
            except (KeyError, ShoalError):
                return None
            spans.append(perf_counter() - began_s)
    mean = windows / devices
    up, down = (
        sum(getattr(r, way) for r, _ in training_rounds) / devices
        for way in ("bytes_up", "bytes_down")
    )
    return RoundWork(
        mean,
        ceil(mean / train.batch_size),
        train.batch_size,
        up,
        down,
        min(spans[1:]),
        len(training_rounds),
    )


def estimates(counted: RoundWork) -> list[Estimate]:
    """Return the estimated cost for each speed of a phone in `SPEEDS`."""
    transfer_s = counted.bytes_down / DOWN_BYTES_PER_S + counted.bytes_up / UP_BYTES_PER_S
    costs = []
    for speed, factor in SPEEDS.items():
        compute_s = counted.steps * counted.step_s * factor
        percent = 100 * (COMPUTE_W * compute_s + RADIO_W * transfer_s) / BATTERY_J
        costs.append(Estimate(speed, compute_s, transfer_s, percent, percent * counted.rounds))
    return costs
