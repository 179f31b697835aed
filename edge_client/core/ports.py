"""What the agent asks of its surroundings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np

from wire.arrays.tensors import Array, Tensors
from wire.bundle import Bundle, Window
from wire.messages import Digest, MaybeDigest
from wire.tasks import CLASSIFICATION, TaskName


@dataclass(frozen=True)
class Windows:
    """A device's examples: x (n, channels, time) float32 in sensor units, or whole numbers, which a
    bundle takes for measurements or ids as its window says; y (n,) int64 class numbers, or (n,
    steps) int64, the class of each step or -1, or (n, names) int64, 1 for each name that is there
    and 0 for others, or (n, quantities) float32."""

    train_x: Array = field(repr=False)
    train_y: Array = field(repr=False)
    test_x: Array = field(repr=False)
    test_y: Array = field(repr=False)
    unlabelled_x: Array = field(default_factory=lambda: np.zeros(0, np.float32), repr=False)
    """Windows that nobody has labelled, shaped as `train_x`; empty where there are none."""
    names: tuple[str, ...] = ()
    """What the columns of labels (n, names) or (n, quantities) are called, where the data say
    it."""

    @property
    def num_train(self) -> int:
        """Number of training examples."""
        return len(self.train_y)

    @property
    def num_test(self) -> int:
        """Number of test examples."""
        return len(self.test_y)

    @property
    def num_unlabelled(self) -> int:
        """Number of windows without labels."""
        return len(self.unlabelled_x)


class Graphs(Protocol):
    """The graphs of one bundle, ready to run."""

    @property
    def max_batch(self) -> int | None:
        """Examples in a batch, at most; None where there is no limit."""

    def run(self, graph: str, inputs: Tensors) -> Tensors:
        """Run a graph on named arrays; outputs by name (`wire.bundle.Graph` says the names)."""


@runtime_checkable
class WholeTraining(Protocol):
    """Graphs that can also make a training of many batches in one call, the faster way where there
    is one."""

    def trains(self, graph: str) -> bool:
        """Whether `train` can do what running this graph batch by batch would do."""

    def train(
        self,
        graph: str,
        tensors: Tensors,
        x: Array,
        y: Array,
        batches: Sequence[Array],
        hyper: Tensors,
    ) -> Tensors:
        """Run a graph over batches of the examples x (n, \\*window) and y (n,), each batch given by
        index, the outputs of one being the tensors of the next: the last ``next/ROLE/NAME``, and
        ``metric/loss_sum`` and ``metric/num_correct`` summed over all."""


GraphLoader = Callable[[Bundle], Graphs]


@runtime_checkable
class WholeModels(Protocol):
    """Graphs whose runtime can also answer with a model in one file (`wire.arrays.onnx_model`)."""

    def answer(self, model: bytes, x: Array) -> Array:
        """Its class probabilities (n, classes) float32 of examples x (n, \\*window)."""


class Current(msgspec.Struct, frozen=True):
    """The model that answers predictions, apart from any run: digests of its bundle, its tensors,
    and this device's private tensors (empty where it has none). It is also what ``model.json``
    says."""

    bundle: Digest
    model: Digest
    private: MaybeDigest
    run_id: str
    epoch: int
    since_s: float
    """Unix time, as well as the device knew it, when it came into use."""
    release: int = 0
    """The release's number; 0 if a finished run offered it."""
    group: str = ""
    name: str = ""
    version: int = 0
    """Of the bundle."""
    classes: tuple[str, ...] = ()
    task: TaskName = CLASSIFICATION
    window: Window | None = None
    onnx: MaybeDigest = ""
    """SHA-256 of ``model.onnx``; empty where the bundle has nothing to make one from."""
    kept: MaybeDigest = ""
    """Of what the device has kept of this model, where that is used (`edge_client.core.kept`);
    empty where the model answers alone."""
    alone: str = ""
    """Why it came into use without what the device had kept; empty where that is used, or nothing
    was kept then."""


ReadBlob = Callable[[str], bytes | None]
"""Returns the bytes of a stored blob, which have this hash; None where there are none."""


@dataclass(frozen=True)
class Health:
    """What a device says of itself when it checks in; None where it cannot know."""

    battery_percent: float | None = None
    unmetered: bool | None = None
    hardware: str = ""
    free_bytes: int | None = None
    """Storage that the client may still take."""
    temperature_c: float | None = None
    charging: bool | None = None
    """Whether it runs on outside power."""
    idle: bool | None = None
    """Whether nothing else wants much of its processor."""
