"""What the agent asks of its surroundings."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np

from edge_client.core.session import Session
from wire.arrays.tensors import Array, Tensors
from wire.bundle import Bundle, Window
from wire.messages import Digest, MaybeDigest, Pieces
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


class LiveWindows(Protocol):
    """Windows of a device that goes on recording: other ones from plan to plan, and never within
    one."""

    @property
    def has_moved(self) -> bool:
        """Whether the data have moved against those of the last survey, as far as `look` knows."""

    def now(self, window: Window | None = None, classes: Sequence[str] | None = None) -> Windows:
        """The windows as of now, as a bundle asks for them, or as the device's own settings do.

        Raises:
            DataError: what is recorded cannot be cut into such windows.
        """

    def look(self) -> bool:
        """Compare what was recorded since the last survey with what was there then, if it is time
        to; whether that is found to have moved now, and was not before."""

    def surveyed(self) -> None:
        """A survey of the data was made: they are what later ones are compared with."""


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


class BlobReader(Protocol):
    """Where stored blobs are read from."""

    def blob(self, digest: str) -> bytes | None:
        """The bytes, which have this hash; None where there are none."""


class BlobPart(Protocol):
    """A blob that comes in pieces; those that are here outlive a restart."""

    @property
    def pieces(self) -> Pieces:
        """What it is cut into."""

    @property
    def missing(self) -> Collection[int]:
        """The indexes of pieces that are not here, in order."""

    def put(self, index: int, payload: bytes) -> bool:
        """Keep a piece; whether it is here now. If not, its bytes are not those of this piece."""


class DeviceState(Protocol):
    """What must survive a restart of the device. Every write is complete or did not happen; an
    OSError says that it did not."""

    def load(self) -> Session:
        """The session as last saved; a new one at first, and if the saved one is damaged."""

    def save(self, session: Session) -> None:
        """Save the session."""

    def has_blob(self, digest: str) -> bool:
        """Whether a blob is stored; it may be damaged."""

    def blob(self, digest: str) -> bytes | None:
        """A downloaded blob; None if there is none, or if its bytes no longer have this hash: then
        it is set aside."""

    def put_blob(self, digest: str, payload: bytes) -> None:
        """Keep a downloaded blob."""

    def part(self, pieces: Pieces) -> BlobPart:
        """A blob that comes in pieces, with those that are stored already."""

    def finish(self, part: BlobPart) -> bool:
        """Let a part of which nothing is missing be a stored blob. If its bytes do not have their
        hash it is deleted, and this is false."""

    def keep_blobs(self, digests: set[str]) -> None:
        """Forget every blob but these, and every part of one."""

    def put_update(self, run_id: str, round: int, payload: bytes, private: Tensors) -> None:
        """Keep a finished update, and the private tensors as they are after that round."""

    def update(self) -> bytes | None:
        """The update kept by `put_update`, or None."""

    def update_size(self) -> int:
        """How many bytes it has; 0 if there is none."""

    def update_part(self, offset: int, size: int) -> bytes:
        """So many of its bytes, from an offset on."""

    def drop_update(self) -> None:
        """Forget the kept update."""

    def checkpoint(self) -> bytes | None:
        """What `put_checkpoint` kept; None if there is nothing, or if it is damaged: then it is
        deleted."""

    def put_checkpoint(self, payload: bytes) -> None:
        """Keep this in place of the one before."""

    def drop_checkpoint(self) -> None:
        """Forget it."""

    def private(self, run_id: str, round: int) -> Tensors:
        """The private tensors (``private/NAME``) as they were before this round of this run; empty
        at first. A round that is carried out again after a crash starts from the same ones."""

    def current(self) -> Current | None:
        """The model in use, as last put; None if there is none, or if what says so is damaged."""

    def before(self) -> Current | None:
        """The model that was in use before that one."""

    def onnx(self, current: Current) -> bytes | None:
        """The one file of the model in use; None if there is none, or if it is damaged."""

    def put_current(self, current: Current, onnx: bytes) -> None:
        """Another model is in use from now on, all at once, and the one before is kept until the
        next. Its blobs are stored already; `onnx` is the whole of it in one file, or empty."""

    def traffic(self) -> dict[int, int]:
        """Bytes that came and went, by hour (of Unix time), as last put."""

    def put_traffic(self, bytes_by_hour: dict[int, int]) -> None:
        """Keep these."""


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
