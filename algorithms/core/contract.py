"""Contracts of means and server optimizers, and the types that all components share.

The other components have base classes in their own folders.

Tensors are named ``ROLE/NAME``. On the server they are numpy float32 arrays. Inside an objective
they are torch tensors, because its functions are traced into graphs. Nothing in this module or
below it reads a clock, a file or a global random state: the same inputs and seed give the same
bits.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

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
InSums = Literal["works", "over cells", "cannot"]
"""Declaration for secret mode, in which the server learns sums over devices alone.

A choice works in sums over all devices of a group, in sums over fixed cells of devices, or cannot
work without updates or measurements of single devices.
"""

GraphFunction = Callable[[TorchTensors, TorchTensors, TorchTensors], TorchTensors]
"""Function of an objective that is traced into a graph; pure.

Arguments are tensors by ``ROLE/NAME``, a batch by column, and hyper-parameters by name. The result
holds outputs by name: ``next/ROLE/NAME`` (the tensor's next value), ``metric/NAME`` (a sum over the
batch) or ``output/NAME`` (one row per example).
"""


@dataclass(frozen=True)
class PlainSgd:
    """A training graph that is plain SGD with momentum on the model's mean cross-entropy.

    Such a graph may be replaced by another implementation of SGD. `roles` are the roles whose
    parameters move. `moves_statistics` is True if running statistics move.
    """

    roles: frozenset[str] = frozenset((names.SHARED, names.PRIVATE))
    moves_statistics: bool = True


USUAL_PASSES = 16
"""Default maximum of passes over the labelled training windows in one epoch.

It applies to a device with many more unlabelled windows.
"""


@dataclass(frozen=True)
class Work:
    """Training work of every device in every round.

    `hyper` overrides the bundle's own hyper-parameters.
    """

    batch_size: int
    local_epochs: int
    hyper: Mapping[str, float] = field(default_factory=dict)
    most_passes: int = 1
    """Maximum number of passes over the labelled training windows in one epoch.

    It applies if the device has unlabelled windows as well (`wire.verbs.Train`).
    """

    def train(self, graph: str = "step", epochs: int | None = None, report: bool = True) -> Train:
        """Return the verb that trains with one of the objective's graphs.

        `epochs` defaults to `local_epochs`.
        """
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
    """State of an objective's coordinator between rounds; serialisable: arrays and JSON values."""

    arrays: Tensors = field(default_factory=dict, repr=False)
    info: dict[str, Any] = field(default_factory=dict)


Programs = dict[str, tuple[Verb, ...]]
"""The verbs that devices carry out in a round, by key.

``device:ID`` is the program of one device, ``start:KEY`` that of the devices that start from one
model, and the empty string that of all other devices.
"""


@dataclass(frozen=True)
class Probe:
    """The server's view of a model: functions of its tensors, for groupings that compare responses.

    `run(tensors, x)` maps torch tensors by ``ROLE/NAME`` and x (batch, channels, time) to the
    probabilities (batch, classes), and for each layer of `norm_layers` the mean and the variance of
    x per channel at that layer. It is differentiable in x.
    """

    run: Callable[[TorchTensors, Tensor], tuple[Tensor, list[tuple[Tensor, Tensor]]]]
    input_shape: tuple[int, ...]
    norm_layers: tuple[str, ...]
    needs: tuple[str, ...]
    """Keys of the tensors that it reads, as ``shared/NAME`` and ``statistic/NAME``."""
    predict: Callable[[TorchTensors, Tensor], Tensor] | None = None
    """The probabilities of `run` alone, faster; None if the model has no such function."""
    predict_folded: Callable[[TorchTensors, Tensor], Tensor] | None = None
    """`predict` with BatchNorm folded into the layers before; equal within rounding, faster."""
    network: Network | None = None
    """The model as a list of layers, which `arithmetic` reads; None if a layer is not supported."""
    of_ids: bool = False
    """True if x are int64 ids, so that inputs cannot be synthesised by gradient descent."""
    arithmetic: Arithmetic = NUMPY
    """Fastest implementation for many models at a time, if it supports the model."""


@dataclass(frozen=True)
class LocalModel:
    """A device's model after local training."""

    device_id: str
    num_examples: int
    num_steps: int
    start: str
    """Key of the model that training started from: a group, or `NEWCOMER`."""
    tensors: Tensors = field(repr=False)
    """Views of the round's arena, of roles shared and statistic; empty if models are streamed.

    Copy a tensor to keep it after the round.
    """
    responses: Tensors = field(default_factory=dict, repr=False)
    """Other measurements of the device, as ``response/GRAPH.NAME``, such as its survey."""
    update: Array = field(default_factory=lambda: np.zeros(0, np.float32), repr=False)
    """Local minus received model, flat (D,) float32, over the shared tensors in their order.

    Empty unless the grouping `compares`.
    """
    loss: float = math.nan
    """Mean loss over its training passes."""


@dataclass(frozen=True)
class GroupingMemory:
    """State of a grouping between rounds; serialisable: arrays and JSON values."""

    membership: dict[str, str] = field(default_factory=dict)
    """Key of the group of each device, by device id."""
    arrays: Tensors = field(default_factory=dict, repr=False)
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Grouped:
    """Result of a grouping after a round: the membership, and the evidence for the report."""

    memory: GroupingMemory
    views: dict[str, Matrix] = field(default_factory=dict, repr=False)
    """Distance matrices by view, (M, M) in the order of `device_ids`, for the report.

    For a large fleet they cover a sample of devices.
    """
    device_ids: tuple[str, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)
    extra_epochs: dict[str, int] = field(default_factory=dict)
    """Extra local epochs in the next round, by device id, added to the campaign's own number."""


@dataclass(frozen=True)
class Placement:
    """The group of a newcomer, and the confidence in it.

    `sure` is the share of the most similar devices that are in the group, from 0 to 1. `neighbours`
    is the number of devices with the most similar inputs that were consulted; 0 if inputs were not
    used. `nearer` is the share of the group's devices whose inputs are nearer to the group's mean
    than the newcomer's: near 1 if it fits no group.
    """

    group: str
    sure: float
    neighbours: int = 0
    nearer: float = 0.0


@dataclass(frozen=True)
class Slice:
    """Position of a tensor in a flat model."""

    key: str
    start: int
    stop: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Combined:
    """A group's model, and the weight of each device in it."""

    flat: Array = field(repr=False)
    weights: Array
    """Share of each device, (N,) float64; 0 for a device left out.

    NaN if shares differ between parameters.
    """


class Mean(WithOptions, ABC):
    """Rule that combines a group's models into one."""

    name: ClassVar[str]
    citation: ClassVar[str]
    averages: ClassVar[bool] = False
    """True if it is a plain average that leaves no device out, so that models can be streamed."""
    by_examples: ClassVar[bool] = False
    """True if a model's weight is its device's number of examples."""
    in_sums: ClassVar[InSums] = "cannot"
    """Declaration for secret mode."""

    @abstractmethod
    def combine(
        self, stack: Stack, num_examples: Array, layout: Sequence[Slice], seed: int
    ) -> Combined:
        """Return one (D,) float32 model from (N, D) float32 models with example counts (N,).

        `layout` maps columns to tensors (``shared/NAME``, ``statistic/NAME``).
        """


@dataclass(frozen=True)
class Moved:
    """Result of a server optimizer for one tensor; float64 arrays of the tensor's shape."""

    step: Array = field(repr=False)
    """Term added to the tensor."""
    moments: Tensors = field(repr=False)
    """Next values of the moments, by the names in `ServerOptimizer.moments`."""


class ServerOptimizer(WithOptions, ABC):
    """Rule that moves a group's model towards the mean of its devices' models.

    Each parameter moves independently of the others.
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    moves: ClassVar[bool] = True
    """True if it does anything other than take the mean."""
    moments: Mapping[str, float] = {}
    """Moments of a parameter by name, each with its value before the first step."""

    @abstractmethod
    def step(self, change: Array, moments: Tensors) -> Moved:
        """Return the step for a change of one tensor.

        The change is the mean minus the model. All arrays are float64 of the tensor's shape.
        """


def exchanged(tensors: Mapping[str, T]) -> dict[str, T]:
    """Return the tensors that leave a device and are averaged: roles shared and statistic.

    Their order stays.
    """
    return names.of_role(tensors, *names.EXCHANGED)


def without(info: Any, key: str | None) -> Any:
    """Return JSON values without the key, and without strings equal to it in lists, at any depth.

    Apply it to the values of a memory's fields, one by one: a device's id may be the name of a
    field.
    """
    if isinstance(info, dict):
        return {k: without(value, key) for k, value in info.items() if k != key}
    return (
        [without(value, key) for value in info if value != key] if isinstance(info, list) else info
    )
