"""What a data set is to a simulated fleet: windows by device, and the fixed scaling that the
exported model applies."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np

from algorithms.core.keys import Units
from edge_client.core.ports import Windows
from edge_client.data.labels import fit_labels
from edge_client.data.layout import without_labels
from wire.arrays.tensors import Array
from wire.bundle import Window
from wire.errors import DataError
from wire.tasks import CLASSIFICATION, MULTI_LABEL, RECONSTRUCTION, REGRESSION, SEQUENCE, TaskName

WINDOWS = "windows"
"""The class of all windows where there are no others."""
USUAL, ANOMALOUS = "usual", "anomalous"
"""The classes of data that say which windows are anomalous."""
SAMPLED = 1000
"""Of a larger fleet the labels of so many devices are looked at."""


@runtime_checkable
class Measured(Protocol):
    """Devices that know the size of their values without a look at every one."""

    def squares(self) -> tuple[Array, int]:
        """Sum of squares per channel (channels,) float64 over all training examples, and how many
        values a channel has."""


@dataclass(frozen=True)
class Recordings:
    """All windows of a device, whichever part they are in, and where each was cut: what they can be
    split anew by."""

    x: Array = field(repr=False)
    """(n, \\*window.shape), float32 or ids."""
    y: Array = field(repr=False)
    """(n,), or (n, \\*label): as of `Windows`."""
    session: Array | None = field(default=None, repr=False)
    """(n,) int64: the number of the recording that a window is from, in the order in which they
    were made; None where nobody says."""
    start: Array | None = field(default=None, repr=False)
    """(n,) int64: a window's first sample in its recording (without `session` all are from one);
    None where nobody says."""


@dataclass(frozen=True)
class FleetData:
    """Windows of a fleet. `truth` names each device's known group where there is one, for measuring
    only."""

    name: str
    window: Window
    classes: tuple[str, ...]
    devices: Mapping[str, Windows] = field(repr=False)
    truth: Mapping[str, str] = field(default_factory=dict)
    recordings: Mapping[str, Recordings] = field(default_factory=dict, repr=False)
    """Of each device, where the data say; empty where they do not, or a partition has put the
    examples of all devices together."""

    def channel_size(self) -> Array:
        """Root mean square per channel (channels,) float32 over all training examples, labelled or
        not; 1 for a channel that is always zero, and for ids."""
        if self.window.vocabulary:
            return np.ones(len(self.window.channels), np.float32)
        if isinstance(self.devices, Measured):
            squares, count = self.devices.squares()
            return _root(squares, count)
        axes = (0, *range(2, 1 + len(self.window.shape)))
        parts = [x for w in self.devices.values() for x in (w.train_x, w.unlabelled_x) if len(x)]
        count = sum(x.size // x.shape[1] for x in parts)
        squares = sum(
            (np.square(x, dtype=np.float64).sum(axes) for x in parts),
            np.zeros(len(self.window.channels)),
        )
        return _root(squares, count)

    def label_units(self) -> Units | None:
        """Mean and standard deviation of each quantity over all training labels, 1 for one that is
        always the same; None where labels are no quantities."""
        parts = [w.train_y for w in self.devices.values() if w.num_train]
        if not parts or parts[0].dtype.kind != "f":
            return None
        y = np.concatenate(parts).astype(np.float64)
        size = y.std(0)
        return Units(tuple(y.mean(0).tolist()), tuple(np.where(size > 0, size, 1.0).tolist()))

    def sample(self) -> tuple[Array, Array]:
        """The training examples x (n, \\*window) float32 and labels y (n, \\*label) of one device,
        to try an exported graph with; of the first that has any."""
        first = next(iter(self.devices.values()))
        windows = (
            first
            if first.num_train
            else next((w for w in self.devices.values() if w.num_train), first)
        )
        return windows.train_x, windows.train_y

    def some(self, most: int) -> "FleetData":
        """The fleet, or so many of its devices, drawn at random but the same each time."""
        if len(self.devices) <= most:
            return self
        chosen = np.random.default_rng(0).choice(len(self.devices), most, replace=False)
        names = sorted(self.devices)
        return self.only(names[i] for i in sorted(chosen))

    def only(self, device_ids: Iterable[str]) -> "FleetData":
        """These of its devices."""
        devices = {d: self.devices[d] for d in device_ids}
        truth = {d: group for d, group in self.truth.items() if d in devices}
        recordings = {d: held for d, held in self.recordings.items() if d in devices}
        return replace(self, devices=devices, truth=truth, recordings=recordings)


def task_of_labels(data: FleetData) -> TaskName:
    """The task that a fleet's labels are of, as far as they say it: a column of 0 and 1 for each
    class is likely a mistake, and data without labels say nothing. Both are taken for classes, so
    that `for_task` says what is wrong with them. Where anomalous windows are in test parts alone,
    nobody could learn that class, and usual windows are to be given back."""
    y = data.sample()[1]
    if says_anomalies(data.classes) and not any(
        (w.train_y == data.classes.index(ANOMALOUS)).any()
        for w in data.some(SAMPLED).devices.values()
    ):
        return RECONSTRUCTION
    if y.dtype.kind == "f":
        return REGRESSION
    if data.window.steps:
        return SEQUENCE
    return MULTI_LABEL if y.ndim > 1 and len(y) and not (y.sum(1) == 1).all() else CLASSIFICATION


def says_anomalies(classes: tuple[str, ...]) -> bool:
    """Whether data with these classes say which windows are anomalous."""
    return sorted(classes) == [ANOMALOUS, USUAL]


def for_task(data: FleetData, task: TaskName) -> FleetData:
    """A fleet as a task takes it. Where it needs no labels, all windows are of one class,
    `WINDOWS`, those that nobody has labelled too. Where the data say which are anomalous, the
    classes are `USUAL` and `ANOMALOUS`, in this order, and all windows that are trained on are
    usual: anomalous ones of training parts are left out.

    Raises:
        DataError: it needs labels, and no window has one, or they are labels of another task.
    """
    if task != RECONSTRUCTION:
        if not data.classes:
            raise DataError(
                f"data {data.name}: no window has a label: expected labels, or a task that needs "
                "none, as in --algorithm "
                "fedavg+reconstruction"
            )
        data = _of_steps(data) if task == SEQUENCE else data
        fit_labels(
            data.sample()[1], task, len(data.classes), data.window.steps, f"data {data.name}"
        )
        return data
    if says_anomalies(data.classes):
        kept = {d: _usual_alone(w, data.classes.index(ANOMALOUS)) for d, w in data.devices.items()}
        return replace(data, classes=(USUAL, ANOMALOUS), devices=kept, recordings={})
    if isinstance(
        data.devices, Measured
    ):  # devices that are places of a pool have labels, and all windows
        return data
    devices = {}
    for device_id, own in data.devices.items():
        w = without_labels(own)
        none = [np.zeros(count, np.int64) for count in (w.num_train, w.num_test)]
        devices[device_id] = Windows(w.train_x, none[0], w.test_x, none[1])
    window = msgspec.structs.replace(data.window, steps=0)
    return replace(data, window=window, classes=(WINDOWS,), devices=devices)


def _of_steps(data: FleetData) -> FleetData:
    """The fleet with its columns of 0 and 1 as the classes of steps, where nobody has said what the
    columns are called."""
    y = data.sample()[1]
    if (
        data.window.steps
        or y.ndim != 2
        or y.dtype.kind == "f"
        or data.classes != tuple(map(str, range(y.shape[1])))
    ):
        return data
    return replace(
        data, window=msgspec.structs.replace(data.window, steps=y.shape[1]), classes=("0", "1")
    )


def _usual_alone(windows: Windows, anomalous: int) -> Windows:
    """The windows of a device of which none that is trained on has this class; in the test part 1
    stands for it, and 0 for the other."""
    usual, test_y = windows.train_y != anomalous, (windows.test_y == anomalous).astype(np.int64)
    train_x = windows.train_x[usual]
    made = without_labels(
        Windows(
            train_x, np.zeros(len(train_x), np.int64), windows.test_x, test_y, windows.unlabelled_x
        )
    )
    return replace(made, test_y=test_y) if windows.num_test else made


def digest_of(data: FleetData) -> str:
    """What tells these data from others, whatever they are called: 64 hexadecimal digits of
    everything but their name."""
    digest = hashlib.sha256(repr((data.window, data.classes, sorted(data.truth.items()))).encode())
    for device_id in sorted(data.devices):
        held: list[object] = [data.devices[device_id]]
        held += [data.recordings[device_id]] if device_id in data.recordings else []
        digest.update(device_id.encode())
        for part in held:
            for name, value in sorted(vars(part).items()):
                digest.update(f"/{name}".encode())
                if value is not None:
                    array = np.ascontiguousarray(value)
                    digest.update(f"{array.dtype.str}{array.shape}".encode())
                    digest.update(array.tobytes())
    return digest.hexdigest()


def _root(squares: Array, count: int) -> Array:
    size = np.sqrt(squares / max(1, count))
    return np.where(size > 0, size, 1.0).astype(np.float32)


def cut_windows(recording: Array, length: int, stride: int) -> Array:
    """Windows (n, channels, length) float32 of a recording (samples, channels); none when it is too
    short."""
    if len(recording) < length:
        return np.zeros((0, recording.shape[1], length), np.float32)
    view = np.lib.stride_tricks.sliding_window_view(recording, length, axis=0)[::stride]
    return np.ascontiguousarray(view, dtype=np.float32)


def without_overlap(windows: Windows) -> Windows:
    """Windows that overlap by half and were divided in time by class, with nothing in both parts:
    of each class that is tested, the last training window is left out."""
    keep = np.ones(windows.num_train, bool)
    for label in np.unique(windows.test_y):
        at = np.flatnonzero(windows.train_y == label)
        if len(at) > 1:
            keep[at[-1]] = False
    return Windows(windows.train_x[keep], windows.train_y[keep], windows.test_x, windows.test_y)


def able_to_train(data: FleetData, least: int) -> list[str]:
    """The devices with at least so many labelled training windows, by id."""
    return sorted(
        device_id for device_id, windows in data.devices.items() if windows.num_train >= least
    )


def check_trainable(data: FleetData, least: int) -> None:
    """Check that somebody can train.

    Raises:
        DataError: no device has `least` training windows.
    """
    most = max(windows.num_train for windows in data.devices.values())
    if most < least:
        raise DataError(
            f"data {data.name}: no device of {len(data.devices)} has more than {most} training "
            f"windows, {least} are needed"
        )


def select_devices(data: FleetData, count: int | None) -> FleetData:
    """The first `count` devices by id.

    Raises:
        DataError: more than there are, or fewer than one.
    """
    if count is None or count == len(data.devices):
        return data
    if not 1 <= count <= len(data.devices):
        raise DataError(f"devices = {count}: data {data.name} has {len(data.devices)} devices")
    return data.only(sorted(data.devices)[:count])
