"""The contracts of means and server optimizers, and what all choices share.

The other kinds have theirs as base classes in their folders.

Tensors are named ``ROLE/NAME``. On the server they are numpy float32 arrays; inside an objective
they are torch tensors, because its functions are traced into graphs. Nothing here or below it reads
a clock, a file or a global random state: the same inputs and seed give the same bits.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np
from torch import Tensor

from algorithms.core.stack import NUMPY, Arithmetic, Stack
from algorithms.models.reading.network import Network
from algorithms.spec import WithOptions
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors
from wire.messages import Train, Verb

TorchTensors = dict[str, Tensor]
Matrix = np.ndarray[Any, np.dtype[np.float64]]
T = TypeVar("T")

GraphFunction = Callable[[TorchTensors, TorchTensors, TorchTensors], TorchTensors]
"""(tensors by ``ROLE/NAME``, batch by column, hyper-parameters by name) -> outputs by name:
``next/ROLE/NAME`` (the tensor's next value), ``metric/NAME`` (a sum over the batch) or
``output/NAME`` (one row per example). Pure; traced into graphs."""


@dataclass(frozen=True)
class Sgd:
    """What a training graph is that is plain SGD with momentum on the mean cross-entropy of the
    model, so that it may be carried out by other means than the graph: which roles' parameters it
    moves, and whether running statistics move."""

    roles: frozenset[str] = frozenset((names.SHARED, names.PRIVATE))
    moves_statistics: bool = True


USUAL_PASSES = 16
"""The passes over its training windows that an epoch of a run has at most, on a device with many
more windows without labels."""


@dataclass(frozen=True)
class Work:
    """What a run asks of its devices in every round; `hyper` takes the place of the bundle's own
    values."""

    batch_size: int
    local_epochs: int
    hyper: Mapping[str, float] = field(default_factory=dict)
    most_passes: int = 1
    """Of a device's training windows in an epoch, where it has windows without labels as well
    (`wire.verbs.Train`)."""

    def train(self, graph: str = "step", epochs: int | None = None, report: bool = True) -> Train:
        """The verb that trains with one of the objective's graphs, for the run's own number of
        epochs where `epochs` is None."""
        count = self.local_epochs if epochs is None else epochs
        return Train(
            self.batch_size,
            count,
            hyper=dict(self.hyper),
            graph=graph,
            report=report,
            most_passes=self.most_passes,
        )


@dataclass(frozen=True)
class ObjectiveMemory:
    """What the server's half of an objective remembers from round to round; serialisable: arrays
    and JSON values."""

    arrays: Tensors = field(default_factory=dict, repr=False)
    info: dict[str, Any] = field(default_factory=dict)


Programs = dict[str, tuple[Verb, ...]]
"""The verbs that devices carry out in a round. ``device:ID`` is the key of one device's own
program, ``start:KEY`` that of the devices that start from one model, the empty string that of all
other devices."""


@dataclass(frozen=True)
class Probe:
    """The server's view of a model: a function over its tensors, for groupings that look at what a
    model responds.

    `run(tensors, x)` maps torch tensors by ``ROLE/NAME`` and x (batch, channels, time) to
    (probabilities (batch, classes), and for each layer of `norm_layers` the mean and the variance
    per channel that x has there). Differentiable in x.
    """

    run: Callable[[TorchTensors, Tensor], tuple[Tensor, list[tuple[Tensor, Tensor]]]]
    input_shape: tuple[int, ...]
    norm_layers: tuple[str, ...]
    needs: tuple[str, ...]
    """The tensors it reads, as ``shared/NAME`` and ``statistic/NAME``."""
    predict: Callable[[TorchTensors, Tensor], Tensor] | None = None
    """The probabilities alone: the same numbers as `run` gives, sooner. None where the model has no
    such function."""
    predict_folded: Callable[[TorchTensors, Tensor], Tensor] | None = None
    """The same within rounding, sooner still, with BatchNorm folded into the layers before it."""
    network: Network | None = None
    """The model as a list of layers, where each of them is known: what `arithmetic` reads."""
    of_ids: bool = False
    """Whether x are ids, int64: nobody can make up inputs then by going down a gradient."""
    arithmetic: Arithmetic = NUMPY
    """Asks many models at a time: the soonest, where it can."""


@dataclass(frozen=True)
class LocalModel:
    """A device's model after its local training."""

    device_id: str
    num_examples: int
    num_steps: int
    start: str
    """Key of the model it started from: a group, or `NEWCOMER`."""
    tensors: Tensors = field(repr=False)
    """Views of the round's arena, of roles shared and statistic: copy what is to be kept. Empty
    where models are streamed."""
    responses: Tensors = field(default_factory=dict, repr=False)
    """What the device measured besides: ``response/GRAPH.NAME`` (its survey, for one)."""
    update: Array = field(default_factory=lambda: np.zeros(0, np.float32), repr=False)
    """Local minus received, flat (D,) float32, over the shared tensors in their order; empty unless
    the grouping `compares`."""
    loss: float = math.nan
    """Mean loss over its training passes."""


@dataclass(frozen=True)
class GroupingMemory:
    """What a grouping remembers from round to round; serialisable: arrays and JSON values."""

    membership: dict[str, str] = field(default_factory=dict)
    """By device, the key of its group."""
    arrays: Tensors = field(default_factory=dict, repr=False)
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Grouped:
    """Who belongs together after a round, and what was seen on the way there."""

    memory: GroupingMemory
    views: dict[str, Matrix] = field(default_factory=dict, repr=False)
    """Distance matrices by view, (M, M) in the order of `device_ids`, for the report; of a large
    fleet, a sample."""
    device_ids: tuple[str, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)
    extra_epochs: dict[str, int] = field(default_factory=dict)
    """Local epochs of the next round beyond the run's own number, for devices that are to make
    more."""


@dataclass(frozen=True)
class Placement:
    """The group of a device that came later, and how sure that is: from 0 to 1, the share of the
    devices most like it that are in it. `neighbours` is how many devices with the most similar
    inputs were asked; 0: its inputs had no say."""

    group: str
    sure: float
    neighbours: int = 0


@dataclass(frozen=True)
class Slice:
    """Where a tensor lies in a flat model."""

    key: str
    start: int
    stop: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Combined:
    """A group's model, and how much each device counted in it."""

    flat: Array = field(repr=False)
    weights: Array
    """(N,) float64, the share of each device; 0 for one that was left out. NaN where shares differ
    between parameters."""


class Mean(WithOptions, ABC):
    """How a group's models become one."""

    name: ClassVar[str]
    citation: ClassVar[str]
    averages: ClassVar[bool] = False
    """True if it is a plain average, in which nobody is left out: models can then be summed up as
    they come."""
    by_examples: ClassVar[bool] = False
    """True if a model counts by its device's number of examples."""

    @abstractmethod
    def combine(
        self, stack: Stack, num_examples: Array, layout: Sequence[Slice], seed: int
    ) -> Combined:
        """Make one (D,) float32 model of (N, D) float32 models with example counts (N,). `layout`
        says which columns are which tensor (``shared/NAME``, ``statistic/NAME``)."""


@dataclass(frozen=True)
class Moved:
    """What a server optimizer makes of a change of one tensor; float64 arrays of the tensor's
    shape."""

    step: Array = field(repr=False)
    """What is added to the tensor."""
    moments: Tensors = field(repr=False)
    """What it remembers, by the names in `ServerOptimizer.moments`."""


class ServerOptimizer(WithOptions, ABC):
    """How a group's model moves by the change that its devices' mean asks for. Every parameter is
    moved by itself."""

    name: ClassVar[str]
    citation: ClassVar[str]
    moves: ClassVar[bool] = True
    """True if it does anything else than take the mean."""
    moments: Mapping[str, float] = {}
    """Moments of a parameter by name, each with its value before the first step."""

    @abstractmethod
    def step(self, change: Array, moments: Tensors) -> Moved:
        """Return the step for a change, the mean minus the model, of one tensor; all are float64
        arrays of the tensor's shape."""


def exchanged(tensors: Mapping[str, T]) -> dict[str, T]:
    """What leaves a device and is averaged, the tensors of roles shared and statistic, in their
    order."""
    return names.of_role(tensors, *names.EXCHANGED)


def without(info: Any, key: str | None) -> Any:
    """Return JSON values without what is kept under a key, or says it, at any depth.

    For the values of a memory's fields, one by one: a device's id may be the name of a field.
    """
    if isinstance(info, dict):
        return {k: without(value, key) for k, value in info.items() if k != key}
    return (
        [without(value, key) for value in info if value != key] if isinstance(info, list) else info
    )
