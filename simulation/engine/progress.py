"""What an engine says of a run while it goes on, and what it can be answered."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from aggregator.view.round_record import RoundRecord
from algorithms.objectives.supervised import Supervised
from wire.arrays.tensors import Tensors


class Stop(Enum):
    """The answer to a `RunProgress` that ends a run: no further round of training is made, and
    devices test what they keep."""

    STOP = "stop"


STOP: Final = Stop.STOP


@dataclass(frozen=True)
class HeldModels:
    """The models of a run as they are at one moment. Nothing is read before it is asked for."""

    objective: Supervised
    """What they are trained by, on the network that they are the tensors of."""
    of_group: Callable[[str], Tensors]
    """Key of a group -> what its devices receive (roles shared, statistic, received)."""
    of_device: Callable[[str], Tensors]
    """Device id -> every tensor that the device answers with, what it keeps included."""


@dataclass(frozen=True)
class RunProgress:
    """The run begins, or a round of training or a preparation is over: rounds of training so far,
    and the number of groups."""

    trained: int
    groups: int
    at_s: float = 0.0
    """Virtual seconds since the beginning."""
    records: Sequence[RoundRecord] = ()
    """Of all rounds so far, those before an interruption included; backend messages has none."""
    models: HeldModels | None = None
    """The models until the next round begins; backend messages has none."""


OnProgress = Callable[[RunProgress], Stop | None]
