"""What a run would cost a phone: what was counted and measured, and what follows from it by
assumptions that the report names.

Counted in the run: the windows that a device trains on in a round, and the bytes of its messages.
Measured here: the seconds of a training step, by torch on one thread. Assumed: how fast and how
hungry a phone is. The numbers of `simulation.timing.profiles` are used, with the reasons that stand
there; none of them is a measurement of a phone.
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
"""Timed steps, of which the fastest counts, since other programs only make steps slower; one before
them is not timed."""
DOWN_BYTES_PER_S, UP_BYTES_PER_S = 1e6, 5e5
"""A median phone's network, as profiles `phones` have it: 8 Mbit/s down, 4 up."""
BATTERY_J = 15 * 3600
COMPUTE_W, RADIO_W = 5.0, 1.0
"""A battery of 15 Wh, and 5 W while it computes, as profiles `phones` have it; 1 W for the radio is
ours."""
SPEEDS = {"as fast as this machine's core": 1.0, "3 times slower": 3.0, "10 times slower": 10.0}


@dataclass(frozen=True)
class Counted:
    """What a device's part of a round is, the mean over devices and rounds of training, and the
    time of a step."""

    windows: float
    """Windows trained on, with repetitions."""
    steps: int
    batch_size: int
    bytes_up: float
    bytes_down: float
    step_s: float
    """Of a step on a whole batch, on one thread of this machine."""
    rounds: int


class Estimate(NamedTuple):
    """What a phone would spend on a round and on the run, if it is so fast."""

    speed: str
    compute_s: float
    transfer_s: float
    battery_percent: float
    """Of a full battery, in a round."""
    run_percent: float
    """In all rounds."""


def count(
    records: Sequence[RoundRecord],
    verbs: Sequence[Verb],
    objective: Supervised,
    window: tuple[int, ...],
) -> Counted | None:
    """Count what the rounds of training cost, and time a step of the first graph that `verbs` train
    with. None: nothing was trained, or the graph cannot be run by itself."""
    made = [(r, len(r.evaluated)) for r in records if r.phase == "training" and r.evaluated]
    devices = sum(n for _, n in made)
    windows = sum(r.trained.num_examples for r, _ in made)
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
        sum(getattr(r, way) for r, _ in made) / devices for way in ("bytes_up", "bytes_down")
    )
    return Counted(
        mean, ceil(mean / train.batch_size), train.batch_size, up, down, min(spans[1:]), len(made)
    )


def estimates(counted: Counted) -> list[Estimate]:
    """By the speed of a phone, what it would spend."""
    transfer_s = counted.bytes_down / DOWN_BYTES_PER_S + counted.bytes_up / UP_BYTES_PER_S
    found = []
    for speed, factor in SPEEDS.items():
        compute_s = counted.steps * counted.step_s * factor
        percent = 100 * (COMPUTE_W * compute_s + RADIO_W * transfer_s) / BATTERY_J
        found.append(Estimate(speed, compute_s, transfer_s, percent, percent * counted.rounds))
    return found
