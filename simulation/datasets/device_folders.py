"""A fleet from a folder with a folder per device, or with a recording per device.

`shoal-edge --data` reads the same folders, so a simulation and devices can have the same data.
"""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from edge_client.core.ports import Windows
from edge_client.data.labels import are_steps, column_names, has_classes, in_order
from edge_client.data.layout import PARTS, fit_windows
from edge_client.data.padding import PRESENCE
from edge_client.data.recordings import CLASSES, channels_in, load_recordings, recordings_in
from edge_client.data.windows import channels_of, load_folder, vocabulary_of
from simulation.datasets.npz import MOST_CLASSES
from simulation.datasets.windows import FleetData
from wire.bundle import Window
from wire.errors import DataError
from wire.tasks import NO_LABEL

LENGTH, STRIDE = 128, 64
"""Length of a window and distance between windows of a recording, in samples.

These are the defaults of `shoal-edge`.
"""


def load_device_folders(
    path: Path, length: int = LENGTH, stride: int = STRIDE, steps: int = 0
) -> FleetData:
    """Read a folder of devices.

    A device's id is the name of its folder, or of its recording if there are no folders. Recordings
    are cut into windows of `length` samples, one every `stride` samples. With `steps`, a window has
    that number of steps, each with a class.

    Raises:
        DataError: the folder has no devices, one of them has no device's data, or their windows or
            classes differ.
    """
    folders = sorted(
        folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith(".")
    )
    recordings = [] if folders else recordings_in(path)
    if not folders and not recordings:
        raise DataError(
            f"data {path} has no folder of a device. It must have one for each device, as for "
            "`shoal-edge --data`."
        )
    devices = {folder.name: load_folder(folder, length, stride, steps) for folder in folders}
    devices |= {
        recording.stem: load_recordings(path, [recording], length, stride, steps)
        for recording in recordings
    }
    shapes = {device_id: windows.train_x.shape[1:] for device_id, windows in devices.items()}
    first = next(iter(devices))
    named = {folder.name: channels_of(folder) for folder in folders} | {
        file.stem: channels_in(file) for file in recordings
    }
    padded = [
        shape[-1]
        for device_id, shape in shapes.items()
        if named[device_id][-1:] == (PRESENCE,) and len(shape) == 2
    ]
    if len(padded) == len(shapes):
        shapes = {device_id: (shape[0], max(padded)) for device_id, shape in shapes.items()}
    for device_id, shape in shapes.items():
        if shape != shapes[first]:
            raise DataError(
                f"data {path}: all devices must have windows of one shape, got {shapes[first]} for "
                f"device {first} and {shape} for device {device_id}"
            )
    channels = named[first] or tuple(f"c{i}" for i in range(shapes[first][0]))
    for device_id, columns in named.items():
        if columns and columns != channels:
            raise DataError(
                f"data {path}: all devices must have the same channels, got {', '.join(channels)} "
                f"for device {first} and {', '.join(columns)} for device {device_id}"
            )
    vocabularies = {folder.name: vocabulary_of(folder) for folder in folders}
    for device_id, count in vocabularies.items():
        if count != vocabularies[first]:
            raise DataError(
                f"data {path}: all devices must have the same vocabulary, got "
                f"{vocabularies[first]} ids for device {first} and {count} for device {device_id} "
                "(0: none)"
            )
    length = shapes[first][-1]
    if folders and (
        any((folders[0] / name).exists() for name in ("train.npz", "X.npy"))
        or not recordings_in(folders[0])
    ):  # the windows were cut before
        stride = length
    height = shapes[first][1] if len(shapes[first]) == 3 else 0
    window = Window(channels, length, stride, height=height, vocabulary=vocabularies.get(first, 0))
    devices = {
        d: fit_windows(windows, window, dict.fromkeys(PARTS, f"data {path}, device {d}"))
        for d, windows in devices.items()
    }
    listed = _listed(path, folders or [path])
    devices = _with_labels_alike(path, devices, listed)
    classes, of_steps = _classes(path, listed, devices)
    return FleetData(
        path.resolve().name, msgspec.structs.replace(window, steps=of_steps), classes, devices
    )


def _with_labels_alike(
    path: Path, devices: dict[str, Windows], listed: tuple[str, ...]
) -> dict[str, Windows]:
    """Return the devices with labels of one shape and one order of columns.

    The empty labels of a device without labels get the shape of the others' labels. Columns with
    names are in the order of `listed`, or of the first device with names if it is empty.

    Raises:
        DataError: labels differ between devices.
    """
    labels = {
        device_id: y
        for device_id, windows in devices.items()
        for y in (windows.train_y, windows.test_y)
        if len(y)
    }
    first = next(iter(labels), "")
    for device_id, y in labels.items():
        if (y.dtype, y.shape[1:]) != (labels[first].dtype, labels[first].shape[1:]):
            difference = (
                f"{labels[first].dtype}{list(labels[first].shape)} for device {first} and "
                f"{y.dtype}{list(y.shape)} for device {device_id}"
            )
            raise DataError(
                f"data {path}: all devices must have labels of one kind, got {difference}"
            )
    none = labels[first][:0] if labels else np.zeros(0, np.int64)
    parts = {d: [y if len(y) else none for y in (w.train_y, w.test_y)] for d, w in devices.items()}
    alike = {d: replace(w, train_y=parts[d][0], test_y=parts[d][1]) for d, w in devices.items()}
    named = next((d for d, w in devices.items() if w.names), "")
    expected = listed or (devices[named].names if named else ())
    others = (
        f"those {f'that {CLASSES} lists' if listed else f'of device {named}'} are "
        f"{', '.join(expected)}"
    )
    for d, w in alike.items():
        if w.names and labels:
            train_y, test_y = (
                in_order(y, w.names, expected, f"data {path}: device {d}", others)
                for y in (w.train_y, w.test_y)
            )
            alike[d] = replace(w, train_y=train_y, test_y=test_y, names=expected)
    return alike


def _classes(
    path: Path, listed: tuple[str, ...], devices: dict[str, Windows]
) -> tuple[tuple[str, ...], int]:
    """Return the names of the classes, and the number of steps of a window that have a class, or 0.

    The names are `listed`, or the class numbers of the examples. For several labels or quantities
    they name the columns. Without labels and a list there are none.

    Raises:
        DataError: labels are not class numbers, or the list is shorter than the examples need.
    """
    labels = np.concatenate(
        [y for windows in devices.values() for y in (windows.train_y, windows.test_y)]
    )
    steps = labels.shape[1] if are_steps(labels, listed) else 0
    if not has_classes(labels) and not steps:
        called = next((windows.names for windows in devices.values() if windows.names), listed)
        return column_names(labels, called, f"data {path}"), 0
    if not len(labels) and not listed:
        return (), 0
    labels = labels[labels != NO_LABEL] if steps else labels
    lowest, highest = (int(labels.min()), int(labels.max())) if len(labels) else (0, -1)
    if lowest < 0 or highest > MOST_CLASSES:
        raise DataError(
            f"data {path}: y must hold class numbers from 0 to {MOST_CLASSES}, got {lowest} to "
            f"{highest}"
        )
    present = np.unique(labels)
    if not listed and (lowest > 0 or 2 * len(present) <= highest):
        cause = (
            "labels are "
            f"{', '.join(map(str, present[:8].tolist()))}{' ...' if len(present) > 8 else ''}, so "
            f"{highest + 1 - len(present)}"
        )
        raise DataError(
            f"data {path}: {cause} of {highest + 1} classes have no example. Count classes from 0, "
            f"or list their names in {CLASSES}."
        )
    names = listed or tuple(str(number) for number in range(highest + 1))
    if len(names) <= highest:
        raise DataError(
            f"data {path}: {CLASSES} lists {len(names)} classes, and y has class number {highest}"
        )
    return names, steps


def _listed(path: Path, folders: list[Path]) -> tuple[str, ...]:
    """Return the class names that the devices' folders list; none without lists.

    Raises:
        DataError: the lists differ between devices.
    """
    lists = {
        folder.name: (folder / CLASSES).read_text().rstrip("\n")
        for folder in folders
        if (folder / CLASSES).exists()
    }
    if len(set(lists.values())) > 1:
        raise DataError(
            f"data {path}: {CLASSES} must be the same on all devices, and differs between "
            f"{', '.join(lists)}"
        )
    return tuple(next(iter(lists.values())).split("\n")) if lists else ()
