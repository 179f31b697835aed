"""Windows from recordings: tables of samples (`edge_client.data.tables`), a row for each sample.

`edge_client.data.tables.roles` says which column has which role. The labels of a recording are of
one kind:

- classes, as numbers or names. `classes.txt` may list the names, one a line;
- ``label.NAME``, any number of them: 1 if the name is present, otherwise 0;
- ``target.NAME``, any number of them: a quantity.

An empty cell means that the sample has no such label. The time says the rate, and where samples are
missing: no window spans a gap (`edge_client.data.recordings.stretches`).

A window is cut from consecutive samples of one class; if windows are cut into steps, or have names
or quantities, from any consecutive samples. Its label is:

- its class; or for each step its class (`edge_client.data.labels.classes_of_steps`);
- for each name 1 if it is present in at least half of the samples with a value, otherwise 0;
- for each quantity the mean over the samples with a value.

A window is unlabelled if its samples have no class, or have no value at all for some name or
quantity. `parts_of_run` says which windows of consecutive samples are for training and for testing.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from edge_client.core.ports import Windows
from edge_client.data.array_store import ArrayStore, blocks, places_of, release
from edge_client.data.labels import NAMED, TARGET
from edge_client.data.recordings.classes import (
    class_cells,
    class_columns,
    class_texts,
    has_cell,
)
from edge_client.data.recordings.cutting import (
    NEITHER,
    TEST,
    TRAIN,
    SessionCut,
    cut_samples,
    cuts_of,
)
from edge_client.data.recordings.folders import (
    CLASSES,
    LENGTH,
    RecordingFiles,
    classes_of,
    is_named,
    usual_stride,
)
from edge_client.data.recordings.reading import DataReading, class_names, read_reading
from edge_client.data.recordings.scanning import (
    LARGEST,
    FileSamples,
    FolderScan,
    are_intervals,
    comment_rate,
    dividers_in,
    full_name,
    full_names,
    is_chosen_track,
    roles_of,
    scan,
    times_in,
    times_of,
    to_seconds,
    tracks_of,
)
from edge_client.data.recordings.stretches import pieces
from edge_client.data.recordings.unmatched import unmatched
from edge_client.data.tables.clock import DAY_S, changes_of_label
from edge_client.data.tables.parts import (
    TableSource,
    add_line,
    at_row,
    empty_numbers,
    header_of,
    in_words,
    parts_of,
    read_numbers,
    role_line,
)
from edge_client.data.tables.roles import (
    CHANNEL,
    LABEL,
    LEFT_OUT,
    RoleName,
    by_name,
    spelled,
)
from edge_client.data.tables.words import FolderSettings, settings_in
from wire.arrays.tensors import Array
from wire.bundle import Window
from wire.errors import DataError
from wire.tasks import NO_LABEL

_GROUPS = np.argsort([TRAIN, NEITHER, TEST])
"""Place of each part in the array of a device's windows."""
_UNLABELLED = 3
FEWEST_SAMPLES = 8
"""Minimum length of a window that an error proposes."""
SELDOM = 0.25
"""Minimum share of rows with a value, for a column to be a channel beside others."""
_SAME_LABEL = NO_LABEL - 1
"""Number of a row without a label where labels hold up to the next one."""


class CutRecordings(NamedTuple):
    """Windows of a device, and all its labelled windows x, y with their recording and place.

    Those for training are the first ones of x, and those for testing the last ones.
    """

    windows: Windows
    x: Array
    y: Array
    session: Array
    start: Array
    num_gaps: int
    error: str = ""
    """Reason why there is no window, "" if there is one."""


def cut_recordings(
    device: FolderScan,
    reading: DataReading,
    classes: Sequence[str],
    length: int,
    stride: int,
    store: ArrayStore,
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
        store: source of the array of all windows.
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
    if steps:  # a step has the class of its samples with a label
        reading = replace(reading, labels_hold=False)
    if steps and names:
        raise DataError(
            f"data folder {folder}: windows of steps need a column {LABEL!r} with classes, got "
            f"{', '.join(names)}"
        )
    cuts, sessions = list[SessionCut](), list[int]()
    short, runs = dict[int, int](), list[int]()
    num_gaps = 0
    number_of = _numbers_of_classes(device, classes)
    scratch = ArrayStore()
    for session, t, x, values in _tracks(device, reading, names, number_of, person, scratch):
        for i, piece in enumerate(pieces(t, x, values, reading.rate_hz, scratch)):
            num_gaps += i > 0
            for cut in cuts_of(piece, names, length, stride, steps, short, runs):
                cuts.append(cut)
                sessions.append(session)
    error = "" if cuts else f"data folder {folder}: {_too_short(device, runs, length)}"
    if error and not num_gaps:
        raise DataError(error)
    label = np.zeros((0, len(names)) if names else (0, steps) if steps else 0, np.int64)
    if names and names[0].startswith(TARGET):
        label = label.astype(np.float32)
    # one array in the order of these groups, so that each part of the windows is a view of it
    groups = [np.where(cut.labelled, _GROUPS[cut.part], _UNLABELLED) for cut in cuts]
    ends = np.cumsum([sum(int((g == i).sum()) for g in groups) for i in range(_UNLABELLED + 1)])
    x = store.empty((ends[-1], len(reading.channels), length), np.float32)
    y, session_of, start = [label], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    end = 0
    for i in range(_UNLABELLED + 1):
        for cut, group, session in zip(cuts, groups, sessions, strict=True):
            places = np.flatnonzero(group == i)
            y.append(cut.y[places])
            session_of.append(np.full(len(places), session))
            start.append(cut.start[places])
            for block in blocks(x[end : end + len(places)]):
                part = cut.x[places[block]]
                x[end : end + len(part)] = part
                end += len(part)
                release(cut.x)
    labels = np.concatenate(y)
    train, before, labelled = (int(n) for n in ends[:3])
    windows = Windows(
        x[:train],
        labels[:train],
        x[before:labelled],
        labels[before:labelled],
        x[labelled:],
        tuple(name.partition(".")[2] for name in names),
        reading.channels,
        tuple(classes),
        reading.rate_hz,
    )
    return CutRecordings(
        windows,
        x[:labelled],
        labels[:labelled],
        np.concatenate(session_of)[:labelled],
        np.concatenate(start)[:labelled],
        num_gaps,
        error,
    )


def _too_short(device: FolderScan, runs: Sequence[int], length: int) -> str:
    """Return the reason why no window fits into runs of samples, and a length that fits.

    Half of all samples are in runs of this length or longer.
    """
    ordered = sorted(runs, reverse=True) or [0]
    fits = ordered[int(np.searchsorted(np.cumsum(ordered), sum(ordered) / 2))]
    text = (
        f"no recording has {length} consecutive samples with the same label, or without labels; "
        f"the longest run without a gap has {ordered[0]}"
    )
    seldom = [
        name
        for name, facts in device.facts.items()
        if device.columns[name].role == CHANNEL and facts.values < SELDOM * facts.count
    ]
    if fits < FEWEST_SAMPLES and 0 < len(seldom) < len(device.facts):
        return (
            f"{text}, and {in_words(seldom)} {'has' if len(seldom) == 1 else 'have'} values in few "
            f"of the rows. To leave out such columns: {add_line(role_line(LEFT_OUT, *seldom))}"
        )
    if fits < FEWEST_SAMPLES:
        roles = ", ".join(f"{name!r} is {c.role}" for name, c in device.columns.items())
        return f"{text}. Record for longer, or correct the roles of the columns: {roles}."
    if not isinstance(device.sources[0].files[0][1], Path):
        return f"{text}. Load with length={fits}"
    way = f"Leave --window (in Python length) out, or give {fits}."
    return f"{text}. {way} {add_line(f'window = {fits}')}"


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
    length = length or settings.window or LENGTH
    stride = stride or settings.stride or usual_stride(length)
    device = scan(folder, sources, settings, classes_of(folder))
    reading = read_reading({folder.name: device}, rate_hz)
    classes = class_names([device])
    cut = cut_recordings(device, reading, classes, length, stride, ArrayStore(), steps)
    remarks = [text for text in (unmatched([device]), cut.error, _several(device)) if text]
    return cut.windows, replace(
        reading,
        gaps={folder.name: cut.num_gaps},
        remarks=(*reading.remarks, *remarks),
    )


def _several(device: FolderScan) -> str:
    """Return a remark if columns of a device's recordings name several persons, else ""."""
    persons = sorted(device.persons)
    if len(persons) < 2:
        return ""
    shown = ", ".join(persons[:3]) + ", ..." * (len(persons) > 3)
    return (
        f"samples of {len(persons)} persons ({shown}) are taken together, as those of this device. "
        "If each person has a device of their own, give each a folder with that person's rows"
    )


def _numbers_of_classes(device: FolderScan, classes: Sequence[str]) -> dict[str, int]:
    """Return the number of each class that occurs in recordings.

    Raises:
        DataError: a class is not one of `classes`, unless there are none.
    """
    number = {name: i for i, name in enumerate(classes)} | {"": NO_LABEL}
    if not classes:
        texts = {*device.texts, *device.settings.labels.values()} - {""}
        return {text: int(text) for text in texts} | {"": NO_LABEL}
    for text, (path, line) in device.texts.items():
        if text not in number:
            raise DataError(
                f"{at_row(path, line)}: no class {text!r} in {device.folder / CLASSES}. Known "
                f"classes: {', '.join(classes)}."
            )
    return number


def _file_samples(
    device: FolderScan,
    reading: DataReading,
    source: RecordingFiles,
    sensor: str,
    path: TableSource,
    names: Sequence[str],
    number_of: Mapping[str, int],
    rows: int,
    store: ArrayStore,
    unit: str,
) -> FileSamples:
    """Return the samples of one file, with NaN for the channels of other sensors."""
    roles = roles_of(path, device.settings, sensor)
    labels = class_columns(roles)
    time = next(iter(times_in(roles)), "")
    dividers = dividers_in(roles)
    full = full_names(sensor, roles, reading.channels)
    places = {channel: i for i, channel in enumerate(reading.channels)}
    here = [
        (places[channel], name) for name in roles for channel in [full[name]] if channel in places
    ]
    fixed = next(
        (
            number_of[text]
            for pattern, text in device.settings.labels.items()
            if is_named(pattern, source._replace(files=((sensor, path),)))
        ),
        NO_LABEL,
    )
    columns = dict.fromkeys(
        (*(name for _, name in here), *labels, *times_in(roles), *dividers, *names)
    )
    x = store.empty((rows, len(reading.channels)), np.float32)
    values = store.empty((rows, len(names)) if names else (rows,), float if names else np.int64)
    t = store.empty((rows,), np.float64) if time else None
    tracks = store.empty((rows,), np.int32) if dividers else None
    number_of_track = dict[tuple[str, ...], int]()
    are_dates, end = True, 0
    others = [name for name, role in roles.items() if role.role not in (CHANNEL, LABEL)]
    wanted = [name for name in columns if name in roles]
    for part in parts_of(path, device.settings.names, wanted, others):
        empty_numbers(part, device.settings.missing)
        begin, end = end, end + len(part.lines)
        if end > rows:
            break
        x[begin:end] = np.nan
        for i, name in here:
            x[begin:end, i] = read_numbers(part.columns[name])[0]
        for i, name in enumerate(names):
            values[begin:end, i] = _label_numbers(path, name, part.columns[name], part.lines)
        if not names:
            values[begin:end] = fixed
        if labels and not names:
            cells = class_cells(path, part, labels)
            texts, _, inverse = class_texts(cells)
            named = [device.settings.classes.get(text, text) for text in texts]
            numbered = [number_of[text] if text else fixed for text in named]
            values[begin:end] = np.array(numbered, np.int64)[inverse]
            if reading.labels_hold and fixed == NO_LABEL:
                values[begin:end][~has_cell(cells)] = _SAME_LABEL
        if t is not None:
            t[begin:end], of_dates = times_of(device, path, roles, part)
            are_dates &= of_dates
        if tracks is not None:
            tracks[begin:end] = tracks_of(part, dividers, number_of_track)
        for array in (x, values, t, tracks):
            if array is not None:
                release(array)
    if end != rows:
        raise DataError(f"{path} changed while it was read: it had {rows} rows. Read it again.")
    if t is not None and str(path) in device.repeated:
        is_new = _are_new(t, x)
        rows = len(is_new)
        t, x, values = (store.selected(array, is_new) for array in (t, x, values))
        tracks = None if tracks is None else store.selected(tracks, is_new)
    if t is not None:
        if not rows or not to_seconds(path, time, t, tracks, are_dates, unit):
            t = None
        elif are_intervals(path):
            changes = changes_of_label(t)
            t, x, values = t[changes], x[changes], values[changes]
    elif rows and (rate_hz := comment_rate(path)):
        t = np.arange(rows) / rate_hz
    if t is not None and not all(np.isfinite(t[block]).all() for block in blocks(t)):
        has_time = np.flatnonzero(np.isfinite(t))
        t, x, values = (store.selected(array, has_time) for array in (t, x, values))
        tracks = None if tracks is None else store.selected(tracks, has_time)
    return FileSamples(t, x, values, tracks, tuple(number_of_track))


def _are_new(t: Array, x: Array) -> Array:
    """Return the rows (n,) that differ from the row before them in time or in a value."""
    is_new = np.full(len(t), True)
    for block in blocks(x):
        here = slice(max(1, block.start), block.stop)
        before = slice(here.start - 1, here.stop - 1)
        is_same = (x[here] == x[before]) | (np.isnan(x[here]) & np.isnan(x[before]))
        is_new[here] = (t[here] != t[before]) | ~is_same.all(1)
    return np.flatnonzero(is_new)


def _label_numbers(path: TableSource, name: str, column: Array, lines: Array) -> Array:
    """Return the values (n,) of a name or quantity, NaN if a cell is empty."""
    numbers, wrong = read_numbers(column)
    is_quantity = name.startswith(TARGET)
    fits = np.abs(numbers) <= LARGEST if is_quantity else np.isin(numbers, (0, 1))
    bad = np.flatnonzero(~fits & ~np.isnan(numbers))
    first = min([*([] if wrong is None else [wrong]), *bad[:1].tolist()], default=None)
    if first is not None:
        raise DataError(
            f"{at_row(path, lines[first])}: {name} must be "
            f"{'a finite number' if is_quantity else '0 or 1'}, or empty, got "
            f"{str(column[first])!r}"
        )
    return numbers


def _tracks(
    device: FolderScan,
    reading: DataReading,
    names: Sequence[str],
    number_of: Mapping[str, int],
    person: str | None,
    store: ArrayStore,
) -> Iterator[tuple[int, Array | None, Array, Array]]:
    """Yield number, times, values and labels of each recording, for each track in it."""
    rows, session = iter(device.rows), 0
    for number, source in enumerate(device.sources):
        counts = [next(rows) for _ in source.files]
        shared = device.shared
        files = shared.files.get(number) if shared else None
        if files is None:
            files = [
                _file_samples(
                    device,
                    reading,
                    source,
                    sensor,
                    path,
                    names,
                    number_of,
                    count,
                    shared.store if shared else store,
                    device.units[number],
                )
                for (sensor, path), count in zip(source.files, counts, strict=True)
            ]
            if shared:
                shared.files[number] = files
        keys = sorted({key for file in files for key in file.names}) or [()]
        for key in keys:
            if person is not None and key[:1] not in ((), ("",), (person,)):
                continue
            if not is_chosen_track(device, source, key):
                continue
            tracks = [_of_track(file, key, store) for file in files]
            if reading.labels_hold and not names and not source.labels:
                tracks = [(t, x, _held_labels(labels, store)) for t, x, labels in tracks]
            if tracks[1:] and device.settings.rate and all(t is None for t, _, _ in tracks):
                yield session, None, *_joined_by_rows(source, tracks, store)
            elif tracks[1:]:
                yield session, *_joined(device, source, tracks, store)
            else:
                yield session, *tracks[0]
            session += 1


def _of_track(
    file: FileSamples, key: tuple[str, ...], store: ArrayStore
) -> tuple[Array | None, Array, Array]:
    """Return times, values and labels of one track in a file; of all if nothing divides it."""
    if file.tracks is None:
        return file.t, file.x, file.labels
    number = file.names.index(key) if key in file.names else -1
    ends = [0, *places_of(file.tracks, np.not_equal), len(file.x)]
    runs = [(a, b) for a, b in pairwise(ends) if b > a and file.tracks[a] == number]
    if len(runs) == 1:
        begin, end = runs[0]
        return (
            None if file.t is None else file.t[begin:end],
            file.x[begin:end],
            file.labels[begin:end],
        )
    places = np.concatenate([np.zeros(0, np.int64), *(np.arange(a, b) for a, b in runs)])
    return (
        None if file.t is None else store.selected(file.t, places),
        store.selected(file.x, places),
        store.selected(file.labels, places),
    )


def _held_labels(labels: Array, store: ArrayStore) -> Array:
    """Return classes (n,) in which each holds up to the next one."""
    classes, last = store.empty(labels.shape, labels.dtype), NO_LABEL
    for block in blocks(classes):
        part = np.concatenate([[last], labels[block]])
        since = np.maximum.accumulate(np.where(part != _SAME_LABEL, np.arange(len(part)), 0))
        classes[block] = part[since][1:]
        last = int(classes[block][-1])
    return classes


def _joined_by_rows(
    source: RecordingFiles, tracks: Sequence[tuple[Array | None, Array, Array]], store: ArrayStore
) -> tuple[Array, Array]:
    """Return values and labels of the files of one recording without times, row by row."""
    for (_, path), (_, part, _) in zip(source.files, tracks, strict=True):
        if len(part) != len(tracks[0][1]):
            raise DataError(
                f"{path}: the files of {source.name!r} have no time, so their rows belong together "
                f"one by one, and it has {len(part)} rows, not {len(tracks[0][1])} as "
                f"{source.files[0][1]}. Give each file a column of times."
            )
    x = store.empty(tracks[0][1].shape, np.float32)
    for block in blocks(x):
        x[block] = tracks[0][1][block]
        for _, part, _ in tracks[1:]:
            x[block] = np.where(np.isnan(x[block]), part[block], x[block])
    return x, next((y for _, _, y in tracks if (y != NO_LABEL).any()), tracks[0][2])


def _joined(
    device: FolderScan,
    source: RecordingFiles,
    tracks: Sequence[tuple[Array | None, Array, Array]],
    store: ArrayStore,
) -> tuple[Array, Array, Array]:
    """Return times, values and labels of the files of one recording, in order of time."""
    clock, _, values = next((f for f in tracks if (f[2] != NO_LABEL).any()), tracks[0])
    clocks = [t for t, _, _ in tracks if t is not None]
    if len(clocks) < len(tracks):
        raise DataError(
            f"data folder {device.folder}: the time of {source.name!r} counts rows in a "
            "file, so its files cannot be joined. " + add_line('time_unit = "s"')
        )
    measured = tracks[: len(tracks) - len(source.labels)]
    t = np.concatenate([times for times, _, _ in measured if times is not None])
    order = np.argsort(t, kind="stable")
    t, x = t[order], store.selected(store.joined([part for _, part, _ in measured]), order)
    after = np.searchsorted(clocks[0] if clock is None else clock, t, "right") - 1
    labels = values[np.clip(after, 0, max(0, len(values) - 1))] if len(values) else values
    if source.labels and len(values):  # a class begins at its time
        labels = np.where(after < 0, NO_LABEL, labels)
        begin_s, end_s = clocks[-1].min(), clocks[-1].max()
        if len(t) and max(begin_s - t[-1], t[0] - end_s) > DAY_S:
            raise DataError(
                f"{source.labels[0]}: its times are from {begin_s:g} to {end_s:g} s, and those of "
                f"the samples from {t[0]:g} to {t[-1]:g} s. Give both the same clock."
            )
    return t, x, labels if len(values) else np.full(len(t), NO_LABEL)


def windows_of_recordings(
    folder: Path, sources: Sequence[RecordingFiles], settings: FolderSettings, window: Window
) -> Array:
    """Return all windows (n, channels, length) of `stretches_of_recordings`.

    Raises:
        DataError: a recording cannot be read, or lacks a channel, or there is no window.
    """
    return np.concatenate([*stretches_of_recordings(folder, sources, settings, window)])


def stretches_of_recordings(
    folder: Path, sources: Sequence[RecordingFiles], settings: FolderSettings, window: Window
) -> Iterator[Array]:
    """Yield the windows (n, channels, length) of each stretch without a gap, in order of time.

    They have a model's channels and rate. Columns are taken by the names of the channels, whatever
    their order; labels are not read. As in training, no window spans a gap or has samples of two
    persons.

    Raises:
        DataError: a recording cannot be read, or lacks a channel, or there is no window.
    """
    scratch, count, longest = ArrayStore(), 0, 0
    for source in sources:
        names = {
            full_name(sensor, name): name
            for sensor, path in source.files
            for name in header_of(path, settings.names)
        }
        full = spelled([*names], window.channels)
        names = {full[key]: name for key, name in names.items()}
        path = source.files[0][1]
        if missing := [name for name in window.channels if name not in names]:
            way = (
                f" Name the folder of the files of all sensors, such as {path.parent}."
                if isinstance(path, Path) and not source.files[1:] and "." in missing[0]
                else ""
            )
            raise DataError(
                f"{path}: no column for channel {missing[0]!r}, got {', '.join(names)}. The model "
                f"needs the channels {', '.join(window.channels)}.{way}"
            )
        channels: dict[str, RoleName] = {names[channel]: CHANNEL for channel in window.channels}
        words = {**settings.columns, **channels}
        roles, several = by_name([*names.values()], words)
        for name, column in roles.items():
            if name not in channels and (column.role in (CHANNEL, LABEL) or name in several):
                words[name] = LEFT_OUT
        mine = replace(settings, columns=words, labels={}, window=window.length)
        device = scan(folder, [source], mine)
        device.respell(window.channels)
        reading = read_reading({source.name: device}, window.rate_hz)
        if empty := [c for c in window.channels if device.rows[0] and not device.facts[c].values]:
            raise DataError(
                f"{path}: column {empty[0]}, a channel of the model, has no number in any row"
            )
        columns = {column.name: column for column in reading.columns}
        reading = replace(reading, columns=tuple(columns[name] for name in window.channels))
        for _, t, samples, labels in _tracks(device, reading, (), {}, None, scratch):
            for piece in pieces(t, samples, labels, reading.rate_hz, scratch):
                windows = cut_samples(piece.x, window.length, window.stride)
                count, longest = count + len(windows), max(longest, len(piece.x))
                yield windows
    if not count:
        seconds = f" at {window.rate_hz:g} Hz" if window.rate_hz else ""
        raise DataError(
            f"{sources[0].files[0][1]}: no window. The model needs {window.length} samples in a "
            f"row{seconds} without a gap, got at most {longest}."
        )
