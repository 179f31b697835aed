"""The data of a simulated fleet: windows by device.

It also has the fixed scaling of inputs that the exported model applies.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np

from algorithms.core.keys import Units
from edge_client.core.ports import Windows
from edge_client.data.array_store import blocks
from edge_client.data.labels import fit_labels
from edge_client.data.layout import without_labels
from edge_client.data.recordings.reading import DataReading
from wire.arrays.tensors import Array
from wire.bundle import Window
from wire.errors import DataError
from wire.tasks import CLASSIFICATION, MULTI_LABEL, RECONSTRUCTION, REGRESSION, SEQUENCE, TaskName

WINDOWS = "windows"
"""The class of all windows of a task without labels."""
USUAL, ANOMALOUS = "usual", "anomalous"
"""Names of the classes of data that say which windows are anomalous."""
SAMPLED = 1000
"""Maximum number of devices whose labels are examined."""


@runtime_checkable
class HasSquares(Protocol):
    """Devices that know sums of squares without reading all examples."""

    def squares(self) -> tuple[Array, int]:
        """Return the sum of squares per channel over all training examples, and their number.

        The sum is (channels,) float64, the number that of a channel's values.
        """


@dataclass(frozen=True)
class Recordings:
    """All windows of a device, of both parts, and where each was cut.

    They allow another split of the windows.
    """

    x: Array = field(repr=False)
    """Examples (n, \\*window.shape), float32 or ids."""
    y: Array = field(repr=False)
    """Labels (n,), or (n, \\*label), in the form of `Windows`."""
    session: Array | None = field(default=None, repr=False)
    """Number of each window's recording (n,) int64, in the order in which they were made.

    None if it is unknown.
    """
    start: Array | None = field(default=None, repr=False)
    """First sample of each window in its recording (n,) int64; None if it is unknown.

    Without `session`, all windows are from one recording.
    """


@dataclass(frozen=True)
class FleetData:
    """Windows of a fleet.

    `truth` is each device's known group, if there is one, for measuring only.
    """

    name: str
    window: Window
    classes: tuple[str, ...]
    devices: Mapping[str, Windows] = field(repr=False)
    truth: Mapping[str, str] = field(default_factory=dict)
    recordings: Mapping[str, Recordings] = field(default_factory=dict, repr=False)
    """Recordings by device.

    Empty if the data have none, or a partition has mixed the examples of devices.
    """
    reading: DataReading | None = None
    """Account of what was taken for what in recordings; None for other data."""

    def channel_size(self) -> Array:
        """Return the root mean square per channel (channels,) float32 over all training examples.

        They include unlabelled ones. It is 1 for a channel that is always zero, and for ids.
        """
        if self.window.vocabulary:
            return np.ones(len(self.window.channels), np.float32)
        if isinstance(self.devices, HasSquares):
            squares, count = self.devices.squares()
            return _root(squares, count)
        axes = (0, *range(2, 1 + len(self.window.shape)))
        parts = [x for w in self.devices.values() for x in (w.train_x, w.unlabelled_x) if len(x)]
        count = sum(x.size // x.shape[1] for x in parts)
        squares = sum(
            (np.square(x[at], dtype=np.float64).sum(axes) for x in parts for at in blocks(x)),
            np.zeros(len(self.window.channels)),
        )
        return _root(squares, count)

    def label_units(self) -> Units | None:
        """Return mean and standard deviation of each quantity over all training labels.

        The deviation is 1 for a constant quantity. None if labels are not quantities.
        """
        parts = [w.train_y for w in self.devices.values() if w.num_train]
        if not parts or parts[0].dtype.kind != "f":
            return None
        y = np.concatenate(parts).astype(np.float64)
        size = y.std(0)
        return Units(tuple(y.mean(0).tolist()), tuple(np.where(size > 0, size, 1.0).tolist()))

    def sample(self) -> tuple[Array, Array]:
        """Return the training examples x (n, \\*window) and labels y (n, \\*label) of one device.

        It is the first device that has any. An exported graph is tried with them.
        """
        first = next(iter(self.devices.values()))
        windows = (
            first
            if first.num_train
            else next((w for w in self.devices.values() if w.num_train), first)
        )
        return windows.train_x, windows.train_y

    def some(self, most: int) -> "FleetData":
        """Return the fleet, or `most` of its devices, drawn at random with a fixed seed."""
        if len(self.devices) <= most:
            return self
        chosen = np.random.default_rng(0).choice(len(self.devices), most, replace=False)
        names = sorted(self.devices)
        return self.only(names[i] for i in sorted(chosen))

    def only(self, device_ids: Iterable[str]) -> "FleetData":
        """Return the fleet with these devices alone."""
        devices = {d: self.devices[d] for d in device_ids}
        truth = {d: group for d, group in self.truth.items() if d in devices}
        recordings = {d: recording for d, recording in self.recordings.items() if d in devices}
        return replace(self, devices=devices, truth=truth, recordings=recordings)


def task_of_labels(data: FleetData) -> TaskName:
    """Return the task that a fleet's labels suggest.

    A column of 0 and 1 for each class is likely a mistake, whole numbers as floats may be classes
    or quantities, and data without labels suggest nothing; all count as classes, so that `for_task`
    reports the problem. If only test parts have anomalous
    windows, that class cannot be learned, so the task is to reconstruct usual windows.
    """
    y = data.sample()[1]
    if says_anomalies(data.classes) and not any(
        (w.train_y == data.classes.index(ANOMALOUS)).any()
        for w in data.some(SAMPLED).devices.values()
    ):
        return RECONSTRUCTION
    if y.dtype.kind == "f":
        return CLASSIFICATION if len(y) and not (y % 1).any() else REGRESSION
    if data.window.steps:
        return SEQUENCE
    return MULTI_LABEL if y.ndim > 1 and len(y) and not (y.sum(1) == 1).all() else CLASSIFICATION


def says_anomalies(classes: tuple[str, ...]) -> bool:
    """Return True if data with these classes say which windows are anomalous."""
    return sorted(classes) == [ANOMALOUS, USUAL]


def for_task(data: FleetData, task: TaskName) -> FleetData:
    """Return a fleet in the form of a task.

    A reconstruction needs no labels: all windows, unlabelled ones included, get the class
    `WINDOWS`. If the data say which windows are anomalous, the classes are `USUAL` and `ANOMALOUS`,
    in this order, and anomalous windows are left out of the training parts.

    Raises:
        DataError: the task needs labels, and no window has one, or they are labels of another task.
    """
    if task != RECONSTRUCTION:
        if not data.classes:
            raise DataError(
                f"data {data.name}: no window has a label. Add labels, or use a task that needs "
                "none: --algorithm fedavg+reconstruction"
            )
        data = _of_steps(data) if task == SEQUENCE else data
        fit_labels(
            data.sample()[1], task, len(data.classes), data.window.steps, f"data {data.name}"
        )
        return data
    if says_anomalies(data.classes):
        usual_windows = {
            d: _usual_alone(w, data.classes.index(ANOMALOUS)) for d, w in data.devices.items()
        }
        return replace(data, classes=(USUAL, ANOMALOUS), devices=usual_windows, recordings={})
    if isinstance(data.devices, HasSquares):  # a pool has labels for all windows
        return data
    devices = {}
    for device_id, windows in data.devices.items():
        w = without_labels(windows)
        none = [np.zeros(count, np.int64) for count in (w.num_train, w.num_test)]
        devices[device_id] = Windows(w.train_x, none[0], w.test_x, none[1])
    window = msgspec.structs.replace(data.window, steps=0)
    return replace(data, window=window, classes=(WINDOWS,), devices=devices)


def _of_steps(data: FleetData) -> FleetData:
    """Return the fleet with columns of 0 and 1 as steps' classes, unless they have names."""
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
    """Return the windows of a device without anomalous ones in its training part.

    In the test part, 1 stands for an anomalous window and 0 for a usual one.
    """
    usual, test_y = windows.train_y != anomalous, (windows.test_y == anomalous).astype(np.int64)
    train_x = windows.train_x[usual]
    usual_windows = without_labels(
        Windows(
            train_x, np.zeros(len(train_x), np.int64), windows.test_x, test_y, windows.unlabelled_x
        )
    )
    return replace(usual_windows, test_y=test_y) if windows.num_test else usual_windows


def digest_of(data: FleetData) -> str:
    """Return the identity of data: 64 hexadecimal digits of everything but their name."""
    digest = hashlib.sha256(repr((data.window, data.classes, sorted(data.truth.items()))).encode())
    for device_id in sorted(data.devices):
        parts: list[object] = [data.devices[device_id]]
        parts += [data.recordings[device_id]] if device_id in data.recordings else []
        digest.update(device_id.encode())
        for part in parts:
            for name, value in sorted(vars(part).items()):
                digest.update(f"/{name}".encode())
                if value is not None:
                    array = np.ascontiguousarray(value)
                    digest.update(f"{array.dtype.str}{array.shape}".encode())
                    for at in blocks(array):
                        digest.update(array[at].tobytes())
    return digest.hexdigest()


def _root(squares: Array, count: int) -> Array:
    size = np.sqrt(squares / max(1, count))
    return np.where(size > 0, size, 1.0).astype(np.float32)


def cut_windows(recording: Array, length: int, stride: int) -> Array:
    """Return the windows (n, channels, length) float32 of a recording (samples, channels).

    A recording shorter than a window has none.
    """
    if len(recording) < length:
        return np.zeros((0, recording.shape[1], length), np.float32)
    view = np.lib.stride_tricks.sliding_window_view(recording, length, axis=0)[::stride]
    return np.ascontiguousarray(view, dtype=np.float32)


def without_overlap(windows: Windows) -> Windows:
    """Return windows whose parts share no samples.

    The windows overlap by half and were split in time by class. For each class in the test part,
    the last training window is left out.
    """
    keep = np.ones(windows.num_train, bool)
    for label in np.unique(windows.test_y):
        at = np.flatnonzero(windows.train_y == label)
        if len(at) > 1:
            keep[at[-1]] = False
    return Windows(windows.train_x[keep], windows.train_y[keep], windows.test_x, windows.test_y)


def able_to_train(data: FleetData, least: int) -> list[str]:
    """Return the ids of devices with at least `least` labelled training windows, sorted."""
    return sorted(
        device_id for device_id, windows in data.devices.items() if windows.num_train >= least
    )


def check_trainable(data: FleetData, least: int) -> None:
    """Raise DataError if no device can train.

    Raises:
        DataError: no device has `least` training windows.
    """
    most = max(windows.num_train for windows in data.devices.values())
    if most < least:
        raise DataError(
            f"data {data.name}: a device needs at least {least} training windows, and the most "
            f"that one of {len(data.devices)} has is {most}"
        )


def select_devices(data: FleetData, count: int | None) -> FleetData:
    """Return the first `count` devices by id; all if it is None.

    Raises:
        DataError: `count` is more than there are, or less than one.
    """
    if count is None or count == len(data.devices):
        return data
    if not 1 <= count <= len(data.devices):
        raise DataError(
            f"devices must be between 1 and {len(data.devices)}, the devices of data {data.name}, "
            f"got {count}"
        )
    return data.only(sorted(data.devices)[:count])
