"""What an objective, a grouping, a mean, a privacy mechanism and an algorithm are.

Tensors are named ``ROLE/NAME``. On the server they are numpy float32 arrays; inside an objective they are torch tensors, because
its functions are traced into graphs. Nothing here or below it reads a clock, a file or a global random state: the same inputs
and seed give the same bits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from wire.tensors import Array, Tensors

TorchTensors = dict[str, Tensor]
Matrix = np.ndarray[Any, np.dtype[np.float64]]

NEWCOMER = "initial"
"""Key of the model that a device trains from before it belongs to a group: the bundle's initial tensors."""


class Objective(Protocol):
    """What a device minimises, as pure functions over named tensors; written once, exported to every runtime.

    `tensors` holds every tensor of the roles shared, statistic, private, slot and received; `batch` holds ``x`` (batch, channels,
    time) float32, ``y`` (batch,) int64 and further columns; `hyper` holds float32 scalars.
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    model: nn.Module
    """The model whose structure the functions use; its own values are never read or changed after `initial`."""
    hyper: ClassVar[Mapping[str, float]]
    """Names and default values of the hyper-parameters that the step takes."""

    def initial(self) -> TorchTensors:
        """The tensors before the first round, by ``ROLE/NAME``."""

    def step(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> tuple[TorchTensors, TorchTensors]:
        """One local step: (next tensors of the roles that change, metrics as sums over the batch)."""

    def evaluate(self, tensors: TorchTensors, batch: TorchTensors) -> TorchTensors:
        """Metrics over a batch, as sums: ``loss_sum``, ``num_correct`` (float32 scalars)."""

    def predict(self, tensors: TorchTensors, x: Tensor) -> Tensor:
        """Class probabilities, (batch, classes)."""

    def survey(self, tensors: TorchTensors, batch: TorchTensors) -> TorchTensors:
        """What tells data distributions apart, as sums over the batch: ``mean.LAYER`` and ``variance.LAYER`` (channels,) at the
        input of each BatchNorm layer, ``gradient`` (classes, features) of the cross-entropy by the last layer's weights."""


@dataclass(frozen=True)
class Probe:
    """The server's view of a model: a function over its tensors, for groupings that look at what a model responds.

    `run(tensors, x)` maps torch tensors by ``ROLE/NAME`` and x (batch, channels, time) to (probabilities (batch, classes), and for
    each layer of `norm_layers` the mean and the variance per channel that x has there). Differentiable in x.
    """

    run: Callable[[TorchTensors, Tensor], tuple[Tensor, list[tuple[Tensor, Tensor]]]]
    input_shape: tuple[int, ...]
    norm_layers: tuple[str, ...]


@dataclass(frozen=True)
class LocalModel:
    """A device's model after its local training."""

    device_id: str
    num_examples: int
    num_steps: int
    start: str
    """Key of the model it started from: a group, or `NEWCOMER`."""
    tensors: Tensors = field(repr=False)
    responses: Tensors = field(default_factory=dict, repr=False)
    """What the device measured besides: ``response/NAME`` (its survey)."""


@dataclass(frozen=True)
class Memory:
    """What a grouping remembers from round to round; serialisable: arrays and JSON values."""

    membership: dict[str, str] = field(default_factory=dict)
    arrays: Tensors = field(default_factory=dict, repr=False)
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Grouped:
    """Who belongs together after a round, and what was seen on the way there."""

    memory: Memory
    views: dict[str, Matrix] = field(default_factory=dict, repr=False)
    """Distance matrices by view, (N, N) in the order of `device_ids`, for people to look at."""
    device_ids: tuple[str, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)


class Grouping(Protocol):
    """Which devices are averaged together, and what each one trains from."""

    name: ClassVar[str]
    citation: ClassVar[str]
    surveys: bool
    """Whether it needs the survey of every device that has no group yet."""

    def start(self, memory: Memory, device_id: str) -> str:
        """Key of the model that a device trains from in the next round."""

    def group(self, memory: Memory, models: Sequence[LocalModel], probe: Probe, seed: int) -> Grouped:
        """Decide from a round's models, sorted by device id. Every device of `models` is in the new membership."""


class Mean(Protocol):
    """How a group's models become one."""

    name: ClassVar[str]
    citation: ClassVar[str]

    def combine(self, stack: Array, num_examples: Array) -> Array:
        """(N, D) float32 models and (N,) example counts to one (D,) float32 model."""


class Privacy(Protocol):
    """What is clipped and noised before models are combined, and what it costs."""

    name: ClassVar[str]
    citation: ClassVar[str]

    def protect(self, delta: Array, seed: int) -> Array:
        """One device's flat delta (D,) float32 as the server may use it."""


def functional(model: nn.Module, tensors: TorchTensors, x: Tensor, training: bool) -> tuple[Tensor, TorchTensors]:
    """Call `model` with the shared and statistic tensors given, without touching the model itself.

    Returns the logits (batch, classes) and the running statistics after the call, by ``statistic/NAME``.
    """
    buffers = {k.split("/", 1)[1]: v.clone() for k, v in tensors.items() if k.startswith("statistic/")}
    parameters = {k.split("/", 1)[1]: v for k, v in tensors.items() if k.startswith("shared/")}
    counters = {k: torch.zeros((), dtype=torch.int64) for k, _ in model.named_buffers() if k.endswith("num_batches_tracked")}
    model.train(training)
    logits = torch.func.functional_call(model, {**parameters, **buffers, **counters}, (x,))
    return logits, {f"statistic/{k}": v for k, v in buffers.items()}
