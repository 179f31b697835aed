"""Windows from recordings: tables of samples (`edge_client.data.tables`), a row for each sample.

`edge_client.data.roles` says which column has which role. The labels of a recording are of one
kind:

- classes, as numbers or names. `classes.txt` may list the names, one a line;
- ``label.NAME``, any number of them: 1 if the name is present, otherwise 0;
- ``target.NAME``, any number of them: a quantity.

An empty cell means that the sample has no such label. The time says the rate, and where samples are
missing: no window spans a gap (`edge_client.data.stretches`).

A window is cut from consecutive samples of one class; if windows are cut into steps, or have names
or quantities, from any consecutive samples. Its label is:

- its class; or for each step its class (`edge_client.data.labels.classes_of_steps`);
- for each name 1 if it is present in at least half of the samples with a value, otherwise 0;
- for each quantity the mean over the samples with a value.

A window is unlabelled if its samples have no class, or have no value at all for some name or
quantity. `parts_of_run` says which windows of consecutive samples are for training and for testing.
"""

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from edge_client.core.ports import Windows
from edge_client.data.cutting import TEST, TRAIN, SessionCut, cut_samples, cuts_of
from edge_client.data.folders import (
    CLASSES,
    LENGTH,
    STRIDE,
    RecordingFiles,
    classes_of,
    settings_in,
)
from edge_client.data.labels import NAMED, TARGET
from edge_client.data.reading import (
    LARGEST,
    DataReading,
    FolderScan,
    class_column,
    class_names,
    full_name,
    read_reading,
    roles_of,
    scan,
    seconds_of,
    texts_of,
    times_of,
)
from edge_client.data.roles import (
    CHANNEL,
    LABEL,
    LEFT_OUT,
    PERSON,
    TIME,
    by_name,
)
from edge_client.data.stretches import pieces
from edge_client.data.tables import (
    TableSource,
    add_line,
    header_of,
    parts_of,
    read_numbers,
    stem_of,
)
from wire.arrays.tensors import Array
from wire.bundle import Window
from wire.errors import DataError
from wire.tasks import NO_LABEL


class CutRecordings(NamedTuple):
    """Windows of a device, and all its labelled windows x, y with their recording and place."""

    windows: Windows
    x: Array
    y: Array
    session: Array
    start: Array
    num_gaps: int


def cut_recordings(
    device: FolderScan,
    reading: DataReading,
    classes: Sequence[str],
    length: int,
    stride: int,
    steps: int = 0,
    person: str | None = None,
) -> CutRecordings:
    """Return the windows of a device's recordings.

    Args:
        device: the recordings.
        reading: roles of the columns, and the rate.
        classes: names of the classes, in the order of their numbers; none if classes are numbers.
        length: number of samples of a window.
        stride: number of samples between the starts of two windows.
        steps: number of steps with a class of their own in each window; 0 for one class.
        person: the only person whose samples count; None for all.

    Raises:
        DataError: a recording cannot be read, none is long enough, or windows cannot be cut into
            the steps.
    """
    folder = device.folder
    if steps and (length % steps or steps < 2):
        raise DataError(
            f"data folder {folder}: steps must be a number from 2 that divides the {length} "
            f"samples of a window, got {steps}"
        )
    names = reading.labels if reading.labels and "." in reading.labels[0] else ()
    names = names if all(name.startswith((NAMED, TARGET)) for name in names) else ()
    if steps and names:
        raise DataError(
            f"data folder {folder}: windows of steps need a column {LABEL!r} with classes, got "
            f"{', '.join(names)}"
        )
    cuts, sessions = list[SessionCut](), list[Array]()
    short = dict[int, int]()
    num_gaps = 0
    number_of = _numbers_of_classes(device, classes)
    for session, source in enumerate(device.sources):
        for t, x, values in _tracks(device, reading, source, names, number_of, person):
            for i, piece in enumerate(pieces(t, x, values, reading.rate_hz)):
                num_gaps += i > 0
                for cut in cuts_of(piece, names, length, stride, steps, short):
                    cuts.append(cut)
                    sessions.append(np.full(len(cut.x), session))
    if not cuts and not num_gaps:
        raise DataError(
            f"data folder {folder}: no recording has {length} consecutive samples with the same "
            "label, or without labels"
        )
    label = np.zeros((0, len(names)) if names else (0, steps) if steps else 0, np.int64)
    if names and names[0].startswith(TARGET):
        label = label.astype(np.float32)
    none = SessionCut(
        np.zeros((0, len(reading.channels), length), np.float32),
        label,
        np.zeros(0, bool),
        np.zeros(0, np.int64),
        np.zeros(0, np.int64),
    )
    cut = SessionCut(*map(np.concatenate, zip(none, *cuts, strict=True)))
    session_of = np.concatenate([np.zeros(0, np.int64), *sessions])
    train, test = (cut.labelled & (cut.part == part) for part in (TRAIN, TEST))
    windows = Windows(
        cut.x[train],
        cut.y[train],
        cut.x[test],
        cut.y[test],
        cut.x[~cut.labelled],
        tuple(name.partition(".")[2] for name in names),
        reading.channels,
        tuple(classes),
        reading.rate_hz,
    )
    at = cut.labelled
    return CutRecordings(windows, cut.x[at], cut.y[at], session_of[at], cut.start[at], num_gaps)


def load_recordings(
    folder: Path,
    sources: Sequence[RecordingFiles],
    length: int,
    stride: int,
    steps: int = 0,
    rate_hz: float = 0.0,
) -> tuple[Windows, DataReading]:
    """Return the windows of one device's recordings, and what was taken for what.

    Args:
        folder: folder of the recordings.
        sources: the recordings.
        length: number of samples of a window; 0 for that of ``shoal.toml``.
        stride: number of samples between the starts of two windows; 0 for that of ``shoal.toml``.
        steps: number of steps with a class of their own in each window; 0 for one class.
        rate_hz: rate of the samples; 0 for that of most.

    Raises:
        DataError: a recording cannot be read, columns differ, no recording is long enough, or
            windows cannot be cut into the steps.
    """
    settings = settings_in(folder)
    length, stride = length or settings.window or LENGTH, stride or settings.stride or STRIDE
    device = scan(folder, sources, settings, classes_of(folder))
    reading = read_reading({folder.name: device}, rate_hz)
    classes = class_names([device])
    cut = cut_recordings(device, reading, classes, length, stride, steps)
    return cut.windows, replace(reading, gaps={folder.name: cut.num_gaps})


def _numbers_of_classes(device: FolderScan, classes: Sequence[str]) -> dict[str, int]:
    """Return the number of each class that occurs in recordings.

    Raises:
        DataError: a class is not one of `classes`, unless there are none.
    """
    number = {name: i for i, name in enumerate(classes)}
    if not classes:
        return {text: int(text) for text in (*device.texts, *device.settings.labels.values())}
    for text, (path, line) in device.texts.items():
        if text not in number:
            raise DataError(
                f"{path}, line {line}: no class {text!r} in {device.folder / CLASSES}. Known "
                f"classes: {', '.join(classes)}."
            )
    return number


class _FileSamples(NamedTuple):
    """Times (n,) of a file in seconds, None if unknown, its values, labels and persons."""

    t: Array | None
    x: Array
    labels: Array
    person: Array | None


def _file_samples(
    device: FolderScan,
    reading: DataReading,
    source: RecordingFiles,
    sensor: str,
    path: TableSource,
    names: Sequence[str],
    number_of: Mapping[str, int],
) -> _FileSamples:
    """Return the samples of one file, with NaN for the channels of other sensors."""
    roles = roles_of(path, device.settings)
    label = class_column(roles)
    time, person = (
        next((name for name, each in roles.items() if each.role == role), "")
        for role in (TIME, PERSON)
    )
    here = [(i, name) for name in roles for i in [_place(reading.channels, sensor, name)] if i >= 0]
    fixed = next(
        (
            number_of[text]
            for pattern, text in device.settings.labels.items()
            if fnmatch.fnmatch(source.name, pattern) or fnmatch.fnmatch(path.name, pattern)
        ),
        NO_LABEL,
    )
    columns = dict.fromkeys((*(name for _, name in here), label, time, person, *names))
    parts: list[tuple[Array, Array, Array | None]] = []
    times: list[tuple[Array, bool]] = []
    others = [name for name, role in roles.items() if role.role not in (CHANNEL, LABEL)]
    wanted = [name for name in columns if name in roles]
    for part in parts_of(path, device.settings.names, wanted, others):
        x = np.full((len(part.lines), len(reading.channels)), np.nan, np.float32)
        for i, name in here:
            x[:, i] = read_numbers(part.columns[name])[0]
        if names:
            values = np.stack(
                [_label_numbers(path, name, part.columns[name], part.lines) for name in names], 1
            )
        else:
            values = np.full(len(x), fixed)
            if label:
                texts, inverse = np.unique(texts_of(part.columns[label]), return_inverse=True)
                codes = [number_of[text] if text else fixed for text in texts.tolist()]
                values = np.array(codes, np.int64)[inverse]
        if time:
            times.append(times_of(path, time, part.columns[time], part.lines, device.settings))
        parts.append((x, values, texts_of(part.columns[person]) if person else None))
    if not parts:
        width = (0, len(names)) if names else 0
        return _FileSamples(
            None, np.zeros((0, len(reading.channels)), np.float32), np.zeros(width), None
        )
    t = seconds_of(path, time, times, device.settings) if times else None
    x, values = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    persons = np.concatenate([part[2] for part in parts if part[2] is not None]) if person else None
    if t is not None and not (has_time := np.isfinite(t)).all():
        t, x, values = t[has_time], x[has_time], values[has_time]
        persons = None if persons is None else persons[has_time]
    return _FileSamples(t, x, values, persons)


def _place(channels: Sequence[str], sensor: str, name: str) -> int:
    full = full_name(sensor, name)
    return channels.index(full) if full in channels else -1


def _label_numbers(path: TableSource, name: str, column: Array, lines: Array) -> Array:
    """Return the values (n,) of a name or quantity, NaN if a cell is empty."""
    numbers, wrong = read_numbers(column)
    is_quantity = name.startswith(TARGET)
    fits = np.abs(numbers) <= LARGEST if is_quantity else np.isin(numbers, (0, 1))
    bad = np.flatnonzero(~fits & ~np.isnan(numbers))
    first = min([*([] if wrong is None else [wrong]), *bad[:1].tolist()], default=None)
    if first is not None:
        raise DataError(
            f"{path}, line {lines[first]}: {name} must be "
            f"{'a finite number' if is_quantity else '0 or 1'}, or empty, got "
            f"{str(column[first])!r}"
        )
    return numbers


def _tracks(
    device: FolderScan,
    reading: DataReading,
    source: RecordingFiles,
    names: Sequence[str],
    number_of: Mapping[str, int],
    person: str | None,
) -> Iterator[tuple[Array | None, Array, Array]]:
    """Yield times, values and labels of a recording, for each person in it."""
    files = [
        _file_samples(device, reading, source, sensor, path, names, number_of)
        for sensor, path in source.files
    ]
    persons = sorted(device.persons) if person is None and len(device.persons) > 1 else [person]
    for one in persons:
        tracks = []
        for file in files:
            mask = slice(None) if one is None or file.person is None else file.person == one
            t = None if file.t is None else file.t[mask]
            tracks.append((t, file.x[mask], file.labels[mask]))
        t, x, labels = tracks[0]
        if tracks[1:]:
            said_t, _, values = next((f for f in tracks if (f[2] != NO_LABEL).any()), tracks[0])
            clocks = [t for t, _, _ in tracks if t is not None]
            if len(clocks) < len(tracks):
                raise DataError(
                    f"data folder {device.folder}: the time of {source.name!r} counts rows in a "
                    "file, so its files cannot be joined. " + add_line('time_unit = "s"')
                )
            t = np.concatenate(clocks)
            order = np.argsort(t, kind="stable")
            t, x = t[order], np.concatenate([part[1] for part in tracks])[order]
            after = np.searchsorted(clocks[0] if said_t is None else said_t, t, "right") - 1
            labels = values[np.clip(after, 0, max(0, len(values) - 1))] if len(values) else values
        yield t, x, labels


def windows_of_recording(path: Path, window: Window) -> Array:
    """Return the windows (n, channels, length) of a recording, with a window's channels and rate.

    Columns are taken by the names of the channels. No window spans a gap.

    Raises:
        DataError: the recording cannot be read, or lacks a channel.
    """
    settings = settings_in(path.parent)
    header = header_of(path, settings.names)
    if missing := [name for name in window.channels if name not in header]:
        raise DataError(f"{path}: the header has no column {missing[0]!r}, got {list(header)}")
    roles = {name: role.role for name, role in by_name(header, settings.columns)[0].items()}
    words = {name: LEFT_OUT if role != TIME else TIME for name, role in roles.items()}
    words |= dict.fromkeys(window.channels, CHANNEL)
    source = RecordingFiles(stem_of(path), (("", path),))
    device = scan(path.parent, [source], replace(settings, columns=words))
    reading = read_reading({stem_of(path): device}, window.rate_hz)
    columns = {column.name: column for column in reading.columns}
    ordered = tuple(columns[name] for name in window.channels)
    x = [np.zeros((0, len(window.channels), window.length), np.float32)]
    for t, samples, labels in _tracks(
        device, replace(reading, columns=ordered), source, (), {}, None
    ):
        for piece in pieces(t, samples, labels, reading.rate_hz):
            x.append(cut_samples(piece.x, window.length, window.stride))
    return np.concatenate(x)
