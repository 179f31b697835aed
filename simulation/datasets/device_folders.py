"""A fleet from a folder with a folder per device, or with a recording per device.

`shoal-edge --data` reads the same folders, so a simulation and devices can have the same data.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from edge_client.core.ports import Windows
from edge_client.data.array_store import ArrayStore
from edge_client.data.labels import are_steps, column_names, has_classes, in_order
from edge_client.data.layout import PARTS, fit_windows
from edge_client.data.padding import PRESENCE
from edge_client.data.recordings.folders import (
    CLASSES,
    LENGTH,
    RecordingFiles,
    classes_of,
    grouped,
    recordings_in,
    sources_in,
    usual_stride,
    with_others,
)
from edge_client.data.recordings.loading import CutRecordings, cut_recordings
from edge_client.data.recordings.reading import DataReading, class_names, read_reading
from edge_client.data.recordings.scanning import FolderScan, chosen_of, scan, without_others
from edge_client.data.recordings.unmatched import unmatched
from edge_client.data.recordings.unread import others_of, unread
from edge_client.data.tables.parts import MemoryTable, add_line, header_of, is_text_file
from edge_client.data.tables.roles import CHANNEL, LABEL
from edge_client.data.tables.text_form import form_of, stem_of
from edge_client.data.tables.words import SETTINGS, FolderSettings, settings_in
from edge_client.data.windows import UNLABELLED, has_arrays, read_folder, vocabulary_of
from simulation.datasets.npz import MOST_CLASSES
from simulation.datasets.owners import DATE, Owners, by_owner
from simulation.datasets.windows import FleetData, Recordings
from wire.arrays.tensors import Array
from wire.bundle import Window
from wire.errors import ConfigError, DataError
from wire.tasks import NO_LABEL

PART_FOLDERS = frozenset(("train", "test", "training", "testing", "val", "valid", "validation"))
"""Names of folders of a part of a data set."""


def load_device_folders(
    path: Path,
    length: int = 0,
    stride: int = 0,
    steps: int = 0,
    words: FolderSettings | None = None,
) -> FleetData:
    """Read a folder of devices, or one table of the recordings of all.

    A device's id is the person whom a column names, or the name of its folder; without folders, the
    name of its recording. Recordings are cut into windows of `length` samples, one every `stride`
    samples, 0 for the usual ones. With `steps`, a window has that number of steps, each with a
    class. `words` go before those of ``shoal.toml`` in the folder, which hold for all devices.

    Raises:
        DataError: the folder has no devices, one of them has no device's data, or their windows or
            classes differ.
    """
    folder = path if path.is_dir() else path.parent
    settings = settings_in(folder)
    if words is not None:
        chosen = {key: value for key, value in msgspec.to_builtins(words).items() if value}
        settings = msgspec.convert(msgspec.to_builtins(settings) | chosen, FolderSettings)
    settings = msgspec.structs.replace(settings, window=length or settings.window)
    length = settings.window or LENGTH
    stride = stride or settings.stride or usual_stride(length)
    folders = [] if path.is_file() else _device_folders(path)
    tables = [path] if path.is_file() else [] if folders else recordings_in(path)
    others = () if path.is_file() else others_of(path.iterdir(), tables)
    sources = with_others(grouped(tables, folder, settings), others)
    recordings = chosen_of(sources, settings)
    if not folders and not recordings:
        raise DataError(
            f"data {path} has no folder of a device. It must have one for each device, as for "
            f"`shoal-edge --data`, or one recording for each.{_archives(path)}{unread([path])}"
        )
    scans = {
        inner.name: scan(inner, with_others(sources, others), words_here, classes_of(inner))
        for inner in folders
        for words_here in [settings_in(inner, settings)]
        if not has_arrays(inner) and (sources := sources_in(inner, words_here))
    }
    listed = classes_of(folder)
    scans |= {source.name: scan(folder, [source], settings, listed) for source in recordings}
    reading, cuts = None, dict[str, CutRecordings]()
    if scans:
        may_divide = len(scans) == len(folders or scans) and not any(
            (inner / UNLABELLED).exists() for inner in folders
        )
        reading, cuts = _cut_all(path, scans, length, stride, steps, may_divide)
    by_folder = {inner.name: inner for inner in folders if cuts.keys() == scans.keys()}
    devices = {
        device_id: cuts[device_id].windows
        if device_id not in by_folder
        else read_folder(
            by_folder[device_id],
            recorded=cuts[device_id].windows if device_id in cuts else None,
        )[0]
        for device_id in (*by_folder, *(d for d in cuts if d not in by_folder))
    }
    named = {device_id: windows.channels for device_id, windows in devices.items()}
    shapes = {device_id: windows.train_x.shape[1:] for device_id, windows in devices.items()}
    first = next(iter(devices))
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
    vocabularies = {inner.name: vocabulary_of(inner) for inner in by_folder.values()}
    for device_id, count in vocabularies.items():
        if count != vocabularies[first]:
            raise DataError(
                f"data {path}: all devices must have the same vocabulary, got "
                f"{vocabularies[first]} ids for device {first} and {count} for device {device_id} "
                "(0: none)"
            )
    length = shapes[first][-1]
    if first not in cuts:  # the windows were cut before
        stride = length
    height = shapes[first][1] if len(shapes[first]) == 3 else 0
    window = Window(
        channels,
        length,
        stride,
        reading.rate_hz if reading else 0.0,
        height=height,
        vocabulary=vocabularies.get(first, 0),
    )
    devices = {
        d: fit_windows(windows, window, dict.fromkeys(PARTS, f"data {path}, device {d}"))
        for d, windows in devices.items()
    }
    listed = _listed(path, folders or [folder])
    if scans and not listed:
        listed = class_names(scans.values())
    name = path.resolve().name if path.is_dir() else stem_of(path)
    return _fleet(name, path, window, listed, devices, cuts, reading)


def load_tables(
    devices: Mapping[str, Sequence[MemoryTable]],
    words: FolderSettings,
    classes: Sequence[str] = (),
    length: int = 0,
    stride: int = 0,
    steps: int = 0,
    name: str = "own",
) -> FleetData:
    """Return the fleet of recordings in memory by device, read as those of a folder are.

    Args:
        devices: the recordings of each device.
        words: a user's words about the recordings.
        classes: names of the classes; empty for those that occur.
        length: number of samples of a window; 0 for the usual one.
        stride: number of samples between the starts of two windows; 0 for the usual one.
        steps: number of steps with a class of their own in each window; 0 for one class.
        name: name of the data.

    Raises:
        DataError: a recording cannot be used, or they differ.
    """
    words = msgspec.structs.replace(words, window=length)
    length = length or LENGTH
    stride = stride or usual_stride(length)
    scans = {}
    for device_id, tables in devices.items():
        sources = [RecordingFiles(str(i), (("", table),)) for i, table in enumerate(tables)]
        scans[device_id] = scan(Path(device_id), sources, words, classes)
    path = Path(name)
    reading, cuts = _cut_all(path, scans, length, stride, steps)
    listed = class_names(scans.values())
    window = Window(reading.channels, length, stride, reading.rate_hz)
    windows = {device_id: cut.windows for device_id, cut in cuts.items()}
    return _fleet(name, path, window, listed, windows, cuts, reading)


def _fleet(
    name: str,
    path: Path,
    window: Window,
    listed: tuple[str, ...],
    devices: dict[str, Windows],
    cuts: dict[str, CutRecordings],
    reading: DataReading | None,
) -> FleetData:
    """Return the fleet of devices whose windows have one shape.

    Args:
        name: name of the data.
        path: path of the data, for errors.
        window: the windows, without steps.
        listed: names of the classes; empty for the numbers that occur.
        devices: windows of each device.
        cuts: windows of each device that has recordings, with their places in these.
        reading: what was taken for what in the recordings; None if there are none.
    """
    devices = _with_labels_alike(path, devices, listed)
    if cuts.keys() == devices.keys() and not listed:
        devices, cuts, listed = _own_numbers(devices, cuts)
    classes, of_steps = _classes(path, listed, devices)
    return FleetData(
        name,
        msgspec.structs.replace(window, steps=of_steps),
        classes,
        {d: replace(w, channels=(), classes=(), rate_hz=0.0) for d, w in devices.items()},
        recordings={
            d: Recordings(cut.x, cut.y, cut.session, cut.start)
            for d, cut in cuts.items()
            if devices[d].num_train + devices[d].num_test and not devices[d].names
        },
        reading=reading,
    )


def _archives(path: Path) -> str:
    """Return the sentence of an error that names the ``.npz`` of a folder, "" if there is none."""
    names = sorted(inner.name for inner in path.iterdir() if inner.suffix == ".npz")
    return f" To load all devices from {names[0]}, give that file." if names else ""


def _device_folders(path: Path) -> list[Path]:
    return sorted(
        inner for inner in path.iterdir() if inner.is_dir() and not inner.name.startswith(".")
    )


def _cut_all(
    path: Path,
    scans: Mapping[str, FolderScan],
    length: int,
    stride: int,
    steps: int,
    by_person: bool = False,
) -> tuple[DataReading, dict[str, CutRecordings]]:
    """Return the reading of all devices' recordings, and their windows.

    Raises:
        DataError: devices have other channels, or a recording cannot be used.
    """
    first = next(iter(scans))
    date_order = {
        mark: is_first for one in scans.values() for mark, is_first in one.date_order.items()
    }
    for device in scans.values():
        device.respell(scans[first].columns)
        device.date_order = date_order
    persons, reasons, remarks, folders = (
        by_owner(path, scans) if by_person else Owners(dict(scans), {}, [], {})
    )
    only = next(iter(persons.values()))
    if len(persons) == 1 and len(only.sources) > 1 and only.folder != path:
        remarks = [
            *remarks,
            f"all {len(only.sources)} recordings are of one device, {only.folder.name!r}. If each "
            f"is of a device of its own, load the folder {only.folder}"
            + f", and move {SETTINGS} into it"
            * (path / SETTINGS).exists(),
        ]
    if parts := [name for name in scans if name.lower() in PART_FOLDERS]:
        remarks = [
            *remarks,
            f"the names {', '.join(parts)} do not decide which windows are tested on: those at the "
            "end of each recording are. To decide it, give arrays: shoal.load(x, y, owner, split)"
            + ". Each of them is taken for a device"
            * (persons.keys() == scans.keys()),
        ]
    dated = [name for name in scans if DATE.search(name)]
    if by_person and len(persons) == len(scans) == len(dated) > 1:
        remarks = [
            *remarks,
            f"each folder or file is a device, and their names have dates, as those of recordings: "
            f"{', '.join(dated[:3])}{', ...' if len(dated) > 3 else ''}. If several are of one "
            "person, put them into a folder of that person",
        ]
    if error := unmatched(list(persons.values())):
        raise ConfigError(f"{error} Correct it, or remove it.")
    for device_id, device in scans.items():
        mine, theirs = (
            [name for name, column in each.columns.items() if column.role == CHANNEL]
            for each in (device, scans[first])
        )
        if sorted(mine) != sorted(theirs):
            raise DataError(
                f"data {path}: all devices must have the same channels, got {', '.join(theirs)} "
                f"for device {first} and {', '.join(mine)} for device {device_id}. "
                + without_others(mine, theirs, (_header(device), _header(scans[first])))
                + _one_alone(first) * (device.folder == path and not set(mine) & set(theirs))
            )
        names, expected = (
            [n.partition(".")[2] for n, c in each.columns.items() if c.role == LABEL and "." in n]
            for each in (device, scans[first])
        )
        if sorted(names) != sorted(expected):
            raise DataError(
                f"data {path}: device {device_id}: labels are called {', '.join(names) or LABEL}, "
                f"and those of device {first} are {', '.join(expected) or LABEL}"
            )
    reading = read_reading(scans, owners=persons.values())
    classes = class_names(scans.values())
    if persons.keys() != scans.keys() or remarks or reasons:
        reading = msgspec.structs.replace(
            reading,
            folders=folders,
            columns=tuple(
                replace(column, reason=reasons.get(column.name, column.reason))
                for column in reading.columns
            ),
            rates={device_id: device.rate_hz for device_id, device in persons.items()},
            remarks=(*reading.remarks, *remarks),
            recordings=tuple(dict.fromkeys(s.name for d in persons.values() for s in d.sources)),
        )
    cuts, store = {}, ArrayStore()
    for device_id, device in persons.items():
        person = next(iter(device.persons)) if len(device.persons) == 1 else None
        cuts[device_id] = cut_recordings(
            device, reading, classes, length, stride, store, steps, person
        )
    if errors := [cut.error for cut in cuts.values() if cut.error]:
        reading = msgspec.structs.replace(reading, remarks=(*reading.remarks, errors[0]))
    gaps = {device_id: cut.num_gaps for device_id, cut in cuts.items()}
    return msgspec.structs.replace(reading, gaps=gaps), cuts


def _header(device: FolderScan) -> tuple[str, ...]:
    """Return the names in the first file of a device's recordings, none if it is no text."""
    path = device.sources[0].files[0][1]
    names = device.settings.names
    return header_of(path, names) if is_text_file(path) and form_of(path).has_header else ()


def _one_alone(name: str) -> str:
    """Return the sentence of an error about files of a folder that have no channel in common."""
    line = add_line(f"recordings = [{json.dumps(name, ensure_ascii=False)}]")
    return f" To read one file, or one of each sensor, joined by persons and times: {line}"


def _own_numbers(
    devices: dict[str, Windows], cuts: dict[str, CutRecordings]
) -> tuple[dict[str, Windows], dict[str, CutRecordings], tuple[str, ...]]:
    """Return devices whose class numbers that occur are counted from 0, and the former numbers.

    Labels that are not classes, and numbers that are counted from 0 already, stay as they are.
    """
    labels = [y for w in devices.values() for y in (w.train_y, w.test_y) if len(y)]
    if not labels or not has_classes(labels[0]):
        return devices, cuts, ()
    present = np.unique(np.concatenate(labels))
    if present.tolist() == list(range(len(present))):
        return devices, cuts, ()

    def place(y: Array) -> Array:
        return np.searchsorted(present, y).astype(np.int64)

    devices = {
        d: replace(w, train_y=place(w.train_y), test_y=place(w.test_y)) for d, w in devices.items()
    }
    cuts = {d: cut._replace(y=place(cut.y)) for d, cut in cuts.items()}
    return devices, cuts, tuple(map(str, present.tolist()))


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
        folder.name: "\n".join(classes_of(folder))
        for folder in folders
        if (folder / CLASSES).exists()
    }
    if len(set(lists.values())) > 1:
        raise DataError(
            f"data {path}: {CLASSES} must be the same on all devices, and differs between "
            f"{', '.join(lists)}"
        )
    return tuple(next(iter(lists.values())).split("\n")) if lists else ()
