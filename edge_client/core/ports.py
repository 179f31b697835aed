"""Interfaces between the agent and its surroundings, and the records that pass through them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np

from wire.arrays.tensors import Array, Tensors
from wire.bundle import Bundle, Window
from wire.messages import Digest, MaybeDigest
from wire.tasks import CLASSIFICATION, TaskName


@dataclass(frozen=True)
class Windows:
    """Examples of a device.

    x (n, channels, time) is float32 in sensor units, or whole numbers, which are measurements or
    ids as the bundle's window says.

    y is (n,) int64: class numbers; or (n, steps) int64: the class of each step, -1 where unknown;
    or (n, names) int64: 1 for each name that applies, otherwise 0; or (n, quantities) float32.
    """

    train_x: Array = field(repr=False)
    train_y: Array = field(repr=False)
    test_x: Array = field(repr=False)
    test_y: Array = field(repr=False)
    unlabelled_x: Array = field(default_factory=lambda: np.zeros(0, np.float32), repr=False)
    """Windows without labels, shaped as `train_x`; empty if there are none."""
    names: tuple[str, ...] = ()
    """Names of the label columns of (n, names) or (n, quantities), if the data have names."""
    channels: tuple[str, ...] = ()
    """Names of the channels, if the data have names; a bundle's channels are taken by name."""
    classes: tuple[str, ...] = ()
    """Names of the classes in the order of their numbers, if the data have names."""
    rate_hz: float = 0.0
    """Samples per second; 0 if unknown."""
    test_begins_s: Array = field(default_factory=lambda: np.zeros(0), repr=False)
    """Unix times (n,) of the first samples of the test windows; empty if they are not known."""

    def none(self) -> "Windows":
        """Return no window, of the same kind."""
        rows = ("train_x", "train_y", "test_x", "test_y", "unlabelled_x", "test_begins_s")
        return replace(self, **{name: getattr(self, name)[:0] for name in rows})

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
    """Graphs of one bundle, ready to run."""

    @property
    def max_batch(self) -> int | None:
        """Maximum number of examples in a batch, None if there is no limit."""

    def run(self, graph: str, inputs: Tensors) -> Tensors:
        """Run a graph on named arrays and return its outputs by name (see `wire.bundle.Graph`)."""


@runtime_checkable
class WholeTraining(Protocol):
    """Graphs that can also run a training of many batches in one call, which is faster."""

    def trains(self, graph: str) -> bool:
        """Return True if `train` gives the same as running this graph batch by batch."""

    def train(
        self,
        graph: str,
        tensors: Tensors,
        x: Array,
        y: Array,
        batches: Sequence[Array],
        hyper: Tensors,
    ) -> Tensors:
        """Train over several batches in one call and return the last tensors and summed metrics.

        The tensors that a batch returns are the inputs of the next batch.

        Args:
            graph: name of the graph.
            tensors: tensors before the first batch.
            x: examples (n, \\*window).
            y: labels (n,).
            batches: indexes of the examples of each batch.
            hyper: hyperparameters of the graph.

        Returns:
            The last ``next/ROLE/NAME``, and ``metric/loss_sum`` and ``metric/num_correct`` summed
            over all batches.
        """


GraphLoader = Callable[[Bundle], Graphs]


@runtime_checkable
class WholeModels(Protocol):
    """Graphs whose runtime can also run a model of one file (`wire.arrays.onnx_model`)."""

    def answer(self, model: bytes, x: Array) -> Array:
        """Return the class probabilities (n, classes) float32 of the examples x (n, \\*window)."""


class Current(msgspec.Struct, frozen=True):
    """Model in use, independent of any campaign; the content of ``model.json``.

    `bundle`, `model` and `private` are digests of its bundle, its tensors, and this device's
    private tensors (empty if it has none).
    """

    bundle: Digest
    model: Digest
    private: MaybeDigest
    run_id: str
    epoch: int
    since_s: float
    """Unix time by the device's clock when the model came into use."""
    release: int = 0
    """Number of the release; 0 if a finished campaign offered it."""
    group: str = ""
    name: str = ""
    version: int = 0
    """Version of the bundle."""
    classes: tuple[str, ...] = ()
    task: TaskName = CLASSIFICATION
    window: Window | None = None
    onnx: MaybeDigest = ""
    """SHA-256 of ``model.onnx``; empty if the bundle has no graph to make one from."""
    personal_model: MaybeDigest = ""
    """Digest of the personal model in use (`edge_client.core.kept`); empty if there is none."""
    alone: str = ""
    """Reason why no personal model is in use; empty if one is, or if the device had none."""
    back: str = ""
    """Reason why the device went back to it from the model before; empty if it came after that."""


ReadBlob = Callable[[str], bytes | None]
"""Function that returns the bytes of a stored blob by its hash, or None if it is not stored."""


@dataclass(frozen=True)
class Health:
    """State of a device's hardware at a check-in. None if the device cannot know a value."""

    battery_percent: float | None = None
    unmetered: bool | None = None
    hardware: str = ""
    free_bytes: int | None = None
    """Free storage that the client may still use."""
    temperature_c: float | None = None
    charging: bool | None = None
    """True if the device runs on outside power."""
    idle: bool | None = None
    """True if no other program needs much of the processor."""
