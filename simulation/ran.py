"""What a run of either engine leaves, and what it tells while it goes on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aggregator.core.state import RunState
from aggregator.ports import Blobs, RoundRecord
from aggregator.summary import count_groups
from simulation.engine.schedule import Schedule
from wire.tensors import Array


@dataclass(frozen=True)
class Told:
    """The run begins, or a round of training or a preparation is over: rounds of training so far, and the number of groups."""

    trained: int
    groups: int
    at_s: float = 0.0
    """Virtual seconds since the beginning."""


Tell = Callable[[Told], None]


def told_of(trained: int, groups: Mapping[str, str], at_s: float = 0.0) -> Told:
    """What is told of a round after which devices belong to these groups."""
    return Told(trained, count_groups(groups), at_s)


@dataclass(frozen=True)
class Ran:
    """A run that is over: its last state, its records, and the blobs that these name."""

    state: RunState
    records: list[RoundRecord]
    blobs: Blobs
    predict: Callable[[str, Array], Array]
    """(device, x (n, \\*window)) -> class probabilities (n, classes) by the model of that device."""
    path: str
    """The way in which graphs ran (`simulation.engine.paths`)."""
    why: str = ""
    """Why it was no faster one."""
    schedule: Schedule | None = None
    """Who took part when, where something else than the messages said so."""


@dataclass(frozen=True)
class Outcome:
    """A finished simulation: its summary, its last state, its records, and the blobs these name."""

    summary: dict[str, Any]
    state: RunState
    records: list[RoundRecord]
    blobs: Blobs
