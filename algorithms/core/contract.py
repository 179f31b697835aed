"""What an objective, a grouping, a mean, optimizers, a privacy mechanism and an algorithm are.

Tensors are named ``ROLE/NAME``. On the server they are numpy float32 arrays; inside an objective
they are torch tensors, because its functions are traced into graphs. Nothing here or below it reads
a clock, a file or a global random state: the same inputs and seed give the same bits.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from torch import Tensor

from algorithms.core.arithmetic import NUMPY, Arithmetic
from algorithms.core.keys import Units
from algorithms.core.stack import Stack
from algorithms.models.classifier import Classifier
from algorithms.models.reading.network import Network
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors
from wire.messages import Train, Verb
from wire.tasks import Label, TaskName

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


class Objective(Protocol):
    """The device's half of an objective: pure functions over named tensors; written once, exported
    to every runtime.

    A batch holds ``x`` (batch, \\*window) float32, or int64 where the model has a vocabulary, ``y``
    (batch, \\*label) as the task says, the `columns` that the device has made of its examples, and
    the `random` inputs. A role says what happens to a tensor: ``shared`` is exchanged and averaged,
    ``statistic`` is exchanged (BatchNorm), ``private`` stays on the device from round to round,
    ``slot`` starts anew in every round, ``received`` comes from the server with the model;
    ``received/start.NAME`` is the device's own copy of ``shared/NAME`` as it was received.
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    model_answers: ClassVar[bool]
    """Whether ``evaluate`` and ``predict`` say what the model itself answers, and nothing else."""
    has_memory: ClassVar[bool]
    """Whether ``predict``, other than ``evaluate``, answers by what the device remembers as
    well."""
    task: "Task"
    """What is learned."""
    model: Classifier
    """The model whose structure the functions use; its own values are never read or changed after
    `initial`."""
    hyper: Mapping[str, float]
    """Names and default values of the hyper-parameters that the graphs take."""
    columns: Mapping[str, tuple[int, ...]]
    """Columns besides ``x`` and ``y`` that graphs read, float32, and the shape of one example's
    entry."""
    random: Mapping[str, tuple[int, ...]]
    """Random inputs, drawn by the device for every batch: ``uniform/NAME`` in [0, 1) of this shape
    per example, or ``normal/NAME`` standard normal of this shape, from the device's own secret."""

    def initial(self) -> TorchTensors:
        """The tensors before the first round, by ``ROLE/NAME``."""

    def graphs(self) -> Mapping[str, GraphFunction]:
        """Every function a plan may name. ``evaluate`` (``metric/loss_sum``,
        ``metric/num_correct``), ``predict`` (``output/probabilities`` (batch, classes)) and
        ``survey`` are always among them."""

    def sgd(self) -> Mapping[str, Sgd]:
        """The training graphs that are plain SGD; none where batches hold more than examples and
        labels."""


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


class Grouping(Protocol):
    """Which devices are averaged together, and what each one trains from."""

    name: ClassVar[str]
    citation: ClassVar[str]
    mean: str
    """Name of the mean its paper uses."""
    surveys: bool
    """Whether it needs the survey of every device that has no group yet."""
    resurvey: int
    """Rounds of training between two surveys of a device that has a group; 0 for never."""
    chooses: bool
    """Whether devices choose among all groups' models themselves, by their training loss, at the
    start of every round."""
    compares: bool
    """Whether it reads `LocalModel.update`."""
    reads_models: bool
    """Whether it looks at single models at all; where it does not, they need not be held one by
    one."""
    places: bool
    """Whether `place_by_inputs` may tell, so that devices without labels are asked what their
    inputs are like."""

    def begin(self, initial: Tensors, seed: int) -> dict[str, Tensors]:
        """Models (roles shared, statistic) by key that groups start from, besides `initial`; none
        for most."""

    def check(self, model: Tensors, probe: Probe | None) -> None:
        """Whether it can work with what a model's blob holds (roles shared, statistic).

        Raises:
            ConfigError: it needs something that the objective keeps on the device.
        """

    def start(self, memory: GroupingMemory, device_id: str) -> str:
        """Key of the model that a device trains from in the next round."""

    def group(
        self, memory: GroupingMemory, models: Sequence[LocalModel], probe: Probe | None, seed: int
    ) -> Grouped:
        """Decide from a round's models, sorted by device id. Every device of `models` is in the new
        membership. Keys of groups are decimal numbers. `probe` is None where the server does not
        hold the whole model.
        """

    def place_by_inputs(self, memory: GroupingMemory, survey: Tensors) -> Placement | None:
        """Where a device belongs that has no labels, by what it surveyed of its inputs
        (``response/survey.mean.LAYER`` and ``variance.LAYER``); None where the grouping cannot
        tell."""

    def forget(self, memory: GroupingMemory, device_id: str) -> GroupingMemory:
        """The memory without a device: without its group, and without what it reported."""


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


class Mean(Protocol):
    """How a group's models become one."""

    name: ClassVar[str]
    citation: ClassVar[str]
    averages: ClassVar[bool]
    """Whether it is a plain average, in which nobody is left out: models can then be summed up as
    they come."""
    by_examples: ClassVar[bool]
    """Whether a model counts by its device's number of examples."""

    def combine(
        self, stack: Stack, num_examples: Array, layout: Sequence[Slice], seed: int
    ) -> Combined:
        """(N, D) float32 models and (N,) example counts to one (D,) float32 model. `layout` says
        which columns are which tensor (``shared/NAME``, ``statistic/NAME``)."""


class Optimizer(Protocol):
    """How a device moves a tensor by its gradient. Traced into the graphs that train."""

    name: ClassVar[str]
    citation: ClassVar[str]
    replaces: ClassVar[tuple[str, ...]]
    """Hyper-parameters of objectives that mean nothing to it."""

    @property
    def plain(self) -> bool:
        """Whether it is SGD with momentum and nothing else, which every backend has."""

    @property
    def hyper(self) -> Mapping[str, float]:
        """Its hyper-parameters, which take the place of the objective's."""

    def slots(self, key: str, value: Tensor) -> TorchTensors:
        """What it keeps of a trained tensor within a round, before the first step
        (``slot/PREFIX.NAME``)."""

    def clipped(self, directions: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        """The directions of all tensors of a step, as far as it follows them."""

    def move(
        self, key: str, direction: Tensor, tensors: TorchTensors, hyper: TorchTensors, lr: Tensor
    ) -> TorchTensors:
        """The tensor after a step against `direction`, and its slots."""


@dataclass(frozen=True)
class Moved:
    """What a server optimizer makes of a change of one tensor; float64 arrays of the tensor's
    shape."""

    step: Array = field(repr=False)
    """What is added to the tensor."""
    moments: Tensors = field(repr=False)
    """What it remembers, by the names in `ServerOptimizer.moments`."""


class ServerOptimizer(Protocol):
    """How a group's model moves by the change that its devices' mean asks for. Every parameter is
    moved by itself."""

    name: ClassVar[str]
    citation: ClassVar[str]
    moves: ClassVar[bool]
    """Whether it does anything else than take the mean."""

    @property
    def moments(self) -> Mapping[str, float]:
        """What it remembers of a parameter, by name, each with its value before the first step."""

    def step(self, change: Array, moments: Tensors) -> Moved:
        """The step for a change, the mean minus the model, of one tensor; all are float64 arrays of
        the tensor's shape."""


class Task(Protocol):
    """What a model is to learn. Traced into the graphs that train.

    `scaled` are a batch's examples (batch, \\*window) as the model's first layer gets them:
    measurements in units of their channel's root mean square over the fleet.
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    of: ClassVar[TaskName]
    """Which task of the wire it is a loss of: what devices do with labels and answers."""

    @property
    def accuracy(self) -> str:
        """What accuracy is the share of, in words."""

    @property
    def plain(self) -> bool:
        """Whether its loss is the cross-entropy and nothing else, which every backend has."""

    @property
    def balanced(self) -> bool:
        """Whether the classes of a device are to count alike, by the device's own counts
        (`algorithms.tasks.balanced`)."""

    def in_units(self, units: Units | None) -> "Task":
        """The same task, of quantities in these units; itself where it is not about quantities."""

    def outputs(self, window: tuple[int, ...], num_classes: int) -> int:
        """How many numbers a model gives for an example of this shape, or for each step of it,
        where there are so many classes."""

    def label(self, num_outputs: int, steps: int) -> Label:
        """What the label of an example is, where a model gives so many numbers: of each of so many
        steps, or, with 0, of the whole."""

    def answers(self, classes: tuple[str, ...]) -> tuple[str, ...]:
        """What the numbers of `answer` are called, where these are the classes of the data."""

    def check(self, num_outputs: int, steps: int) -> None:
        """Check that it goes with a model of so many outputs, and of so many steps; 0 where it
        answers an example as a whole.

        Raises:
            ConfigError: it does not.
        """

    def target(self, scaled: Tensor, y: Tensor) -> Tensor:
        """What a model's outputs are held against, of examples and their labels (batch,
        \\*label)."""

    def losses(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss (batch,) of each example that training minimises, of a model's outputs (batch,
        outputs) float32, or (batch, steps, outputs), and their target."""

    def measured(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss (batch,) of each example that is reported: without what only helps training."""

    def right(self, logits: Tensor, target: Tensor) -> Tensor:
        """1 for each example (batch,) float32 that was answered rightly, else 0; of steps, their
        share. Accuracy is the mean."""

    def answer(self, logits: Tensor, scaled: Tensor) -> Tensor:
        """What a device is told of its examples (batch, answers) float32, or (batch, steps,
        answers)."""


def exchanged(tensors: Mapping[str, T]) -> dict[str, T]:
    """What leaves a device and is averaged, the tensors of roles shared and statistic, in their
    order."""
    return names.of_role(tensors, *names.EXCHANGED)
