"""Progress reports of an engine during a run, and the answer that stops it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from aggregator.view.round_record import RoundRecord
from algorithms.objectives.supervised import Supervised
from wire.arrays.tensors import Tensors


class Stop(Enum):
    """The answer to a `RunProgress` that ends a run.

    No further round of training opens, and devices test their personal models.
    """

    STOP = "stop"


STOP: Final = Stop.STOP


@dataclass(frozen=True)
class HeldModels:
    """The models of a run at one moment, each read when it is requested."""

    objective: Supervised
    """Objective that trains the models, with their network."""
    of_group: Callable[[str], Tensors]
    """A function from a group's key to the tensors that its devices receive.

    They have the roles shared, statistic and received.
    """
    of_device: Callable[[str], Tensors]
    """A function from a device id to every tensor with which the device answers."""


@dataclass(frozen=True)
class RunProgress:
    """State of a run at its start, or after a preparation or a round of training.

    `trained` is the number of rounds of training so far, `groups` the number of groups.
    """

    trained: int
    groups: int
    at_s: float = 0.0
    """Virtual seconds since the start."""
    records: Sequence[RoundRecord] = ()
    """Records of all rounds so far, also before an interruption; empty for backend messages."""
    models: HeldModels | None = None
    """Models until the next round begins; None for backend messages."""
    privacy: str = ""
    """Sentence about the cost of the rounds planned; empty from the first round on."""


OnProgress = Callable[[RunProgress], Stop | None]
