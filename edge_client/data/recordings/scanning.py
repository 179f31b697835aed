"""Scans of a device's recordings: columns with their values, rates, classes and persons."""

import fnmatch
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edge_client.data.array_store import ArrayStore
from edge_client.data.labels import NAMED, TARGET
from edge_client.data.recordings.classes import (
    class_cells,
    class_columns,
    class_texts,
    flags_of,
    has_cell,
    several_labels_error,
    texts_of,
)
from edge_client.data.recordings.folders import (
    RecordingFiles,
    has_labels_alone,
    is_chosen,
    roles_in,
)
from edge_client.data.recordings.repeats import (
    copy_remark,
    new_rows,
    rate_without_bursts,
    row_hashes,
)
from edge_client.data.tables.clock import (
    FIRST,
    LONG_UNITS,
    UNITS,
    days_first,
    fraction_without_zeros,
    in_seconds,
    named_unit,
    rate_of,
    read_times,
    unit_of_time,
    with_dates,
)
from edge_client.data.tables.parts import (
    TablePart,
    TableSource,
    add_line,
    at_row,
    empty_numbers,
    header_of,
    in_words,
    is_text_file,
    missing_line,
    parts_of,
    read_numbers,
    role_line,
)
from edge_client.data.tables.roles import (
    CHANNEL,
    DATE,
    DIVIDES,
    LABEL,
    LEFT_OUT,
    PERSON,
    TIME,
    USER,
    ColumnRole,
    is_number_of_row,
    is_position,
    plain,
    spelled,
)
from edge_client.data.tables.text_form import (
    FIRST_CELLS,
    LARGEST_RATE_HZ,
    SINCE_1970,
    first_rows,
    form_of,
    marked_thousands,
)
from edge_client.data.tables.values import ColumnFacts
from edge_client.data.tables.words import UNIT_NAMES, FolderSettings, role_by_pattern
from wire.arrays.tensors import Array
from wire.errors import DataError
from wire.tasks import NO_LABEL

LARGEST = float(np.finfo(np.float32).max)
LARGEST_CLASS = 65_535
UNIT_LINE = 'time_unit = "d"'
"""Line of ``shoal.toml`` for times whose values say another unit than they have."""
EARLY = 0.5
"""Share of a file's rows before which the last value of a channel is said."""
FEWEST_TIMES = 50
"""Number of rows whose times say the unit of the files of a recording."""


class FileSamples(NamedTuple):
    """Times (n,) of a file in seconds, None if unknown, its values, labels and persons."""

    t: Array | None
    x: Array
    labels: Array
    tracks: Array | None
    """Number (n,) of each sample's track in `names`; None if no column divides the file."""
    names: tuple[tuple[str, ...], ...]
    """Person of each track, and the cells of the columns that divide recordings."""


class SharedSamples(NamedTuple):
    """Samples of recordings by their number in `FolderScan.sources`, with the store of them."""

    store: ArrayStore
    files: dict[int, list[FileSamples]]


@dataclass
class FolderScan:
    """Content of the recordings of one device, before roles by values are decided."""

    folder: Path
    settings: FolderSettings
    listed: tuple[str, ...]
    """Classes that ``classes.txt`` lists; empty if there is no list."""
    sources: list[RecordingFiles]
    columns: dict[str, ColumnRole] = field(default_factory=dict)
    facts: dict[str, ColumnFacts] = field(default_factory=dict)
    texts: dict[str, tuple[TableSource, int]] = field(default_factory=dict)
    """File and line in which each class occurs first."""
    rates: list[tuple[float, int]] = field(default_factory=list)
    """Rate of each recording, 0 if unknown, and its number of samples."""
    of_tracks: dict[tuple[str, ...], list[tuple[float, int]]] = field(default_factory=dict)
    """Rate and number of samples of each track in a file, by person and the other columns."""
    of_sensors: list[tuple[float, TableSource]] = field(default_factory=list)
    """Rate of each file of recordings with a file for each sensor."""
    rows: list[int] = field(default_factory=list)
    """Number of rows of each file, in the order of `sources`."""
    shared: SharedSamples | None = None
    """Samples of recordings that several persons share; None if they share none."""
    persons: set[str] = field(default_factory=set)
    unnamed: TableSource | None = None
    """A file of a recording in which no column names a person; None if there is none."""
    names: set[str] = field(default_factory=set)
    """Names of the columns of all files."""
    labels: set[str] = field(default_factory=set)
    """Labels in the files, before a user's words change them."""
    places: set[str] = field(default_factory=set)
    """Cells of columns that say by which device, or where on a body, a sample was measured; of all
    columns that divide recordings if a user chooses some of these."""
    needs_names: bool = False
    """True if a file has no names of its columns."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Number of each class in `ColumnFacts`."""
    units: list[str] = field(default_factory=list)
    """Unit of the times of each recording, see `common_unit`."""
    changes: dict[int, int] = field(default_factory=dict)
    """Number of changes from one class to another, by the number of either class."""
    time_units: dict[str, str] = field(default_factory=dict)
    """Unit of each column of times of which the values alone say it."""
    label_steps: set[bool] = field(default_factory=set)
    """True if some row after one with a label has one too, False if some has none."""
    repeated: set[str] = field(default_factory=set)
    """Files in which rows repeat the row before them, with its time."""
    contents: dict[bytes, str] = field(default_factory=dict)
    """Recording, or file of it, by a digest of its times and values."""
    again: list[str] = field(default_factory=list)
    """Remarks about samples that come twice or in bursts, or columns that end early."""
    missing: set[str] = field(default_factory=set)
    """Numbers of the setting `missing` that are in the files, as text."""
    flags: dict[tuple[str, str], int] = field(default_factory=dict)
    """Number of rows in which both of two columns of 0 and 1 are 1, or in which one column is."""
    spans: list[tuple[float, float, str]] = field(default_factory=list)
    """Begin, end and name of each recording with times since 1970."""
    date_order: dict[str, bool] = field(default_factory=dict)
    """Order of the dates in all files, see `days_first`."""

    def respell(self, spellings: Collection[str]) -> None:
        """Call columns as they are spelled in `spellings`."""
        names = spelled([*self.columns], spellings)
        self.columns = {names[name]: column for name, column in self.columns.items()}
        self.facts = {names[name]: facts for name, facts in self.facts.items()}

    @property
    def rate_hz(self) -> float:
        """Rate of most samples, 0 if it is unknown."""
        return usual_rate(self.rates)


def scan(
    folder: Path,
    sources: Sequence[RecordingFiles],
    settings: FolderSettings,
    listed: Sequence[str] = (),
) -> FolderScan:
    """Read recordings once, and return what their columns hold.

    Args:
        folder: folder of the recordings.
        sources: the recordings.
        settings: a user's words about them.
        listed: names of the classes; empty if they are unknown.

    Raises:
        DataError: a file cannot be read, or columns differ between recordings.
    """
    some, names = list[RecordingFiles](), set[str]()
    for source in chosen_of(sources, settings):
        left_out = [s for s, path in source.files if _is_left_out(path, s, settings)]
        for sensor, path in source.files:
            if sensor in left_out:
                names |= {n for c in header_of(path, settings.names) for n in (c, f"{sensor}.{c}")}
        if measured := tuple(file for file in source.files if file[0] not in left_out):
            some.append(source._replace(files=measured))
    device = FolderScan(folder, settings, tuple(listed), some or list(sources), names=names)
    for source in device.sources:
        columns: dict[str, ColumnRole] = {}
        device.units.append(common_unit(source, settings))
        for sensor, path in source.files:
            roles = roles_of(path, settings, sensor)
            full = full_names(sensor, roles, device.columns)
            columns |= {full[name]: role for name, role in roles.items()}
            _scan_file(device, source, sensor, path, roles, full)
        count = len(source.files)
        if count > 1:
            of_files = zip(device.rates[-count:], source.files, strict=True)
            device.of_sensors += [(rate, path) for (rate, _), (_, path) in of_files if rate]
        device.rates[-count:] = [max(device.rates[-count:])]  # slower sensors are filled in
        first = device.columns or columns
        if all(role.role != PERSON for role in columns.values()):
            device.unnamed = source.files[0][1]
        _check_alike(device, source, columns, first)
        device.columns = first | {n: role for n, role in columns.items() if n not in first}
    return device


def chosen_of(
    sources: Sequence[RecordingFiles], settings: FolderSettings
) -> Sequence[RecordingFiles]:
    """Return the recordings to be read: by their names, or else by a cell that divides them.

    They are all if a user chooses none of them.
    """
    by_name = [source for source in sources if is_chosen(settings.recordings, source)]
    return by_name or [s for s in sources if _has_chosen_cell(s, settings)] or sources


def _has_chosen_cell(source: RecordingFiles, settings: FolderSettings) -> bool:
    """Return True if a column that divides recordings has a cell that a user chooses."""
    for sensor, path in source.files:
        dividers = [name for name in dividers_in(roles_of(path, settings, sensor))[1:] if name]
        for part in parts_of(path, settings.names, dividers) if dividers else ():
            cells = {str(cell) for name in dividers for cell in np.unique(part.columns[name])}
            if any(fnmatch.fnmatch(c, pattern) for c in cells for pattern in settings.recordings):
                return True
    return False


def usual_rate(rates: Iterable[tuple[float, int]]) -> float:
    """Return the rate of most samples by the rates of series and their numbers of samples.

    A rate of 0 is unknown; if all are, the result is 0.
    """
    rated = sorted((rate, count) for rate, count in rates if rate)
    half = sum(count for _, count in rated) / 2
    for rate, count in rated:
        half -= count
        if half <= 0:
            return rate
    return 0.0


def is_chosen_track(device: FolderScan, source: RecordingFiles, key: Sequence[str]) -> bool:
    """Return True if a track is to be read: its recording, or a cell besides the person's, is."""
    patterns = device.settings.recordings
    return is_chosen(patterns, source) or any(
        fnmatch.fnmatch(cell, pattern) for cell in key[1:] for pattern in patterns
    )


def full_name(sensor: str, name: str) -> str:
    return f"{sensor}.{name}" if sensor else name


def full_names(sensor: str, names: Iterable[str], spellings: Collection[str]) -> dict[str, str]:
    """Return names in a recording by names in a sensor's file, spelled as in `spellings`."""
    full = {name: full_name(sensor, name) for name in names}
    words = spelled([*full.values()], spellings)
    return {name: words[word] for name, word in full.items()}


def without_others(
    mine: Sequence[str], theirs: Sequence[str], headers: Sequence[Sequence[str]] = ((), ())
) -> str:
    """Return the last sentences of an error about columns that differ.

    `headers` of two texts that differ only in numbers, as of sensors, may mean the same columns.
    """
    others = set(mine) ^ set(theirs)
    if not set(mine) & set(theirs):
        way = "Give columns of the same measurement the same name in all files."
        first, second = ([re.sub(r"\d+", "", name) for name in each] for each in headers)
        if first != second or not first:
            return way
        line = f"names = {json.dumps(headers[1], ensure_ascii=False)}"
        return f"{way} If they are the same columns in all files: {add_line(line)}"
    return "To leave out what differs: " + add_line(role_line(LEFT_OUT, *sorted(others)))


def roles_of(
    path: TableSource, settings: FolderSettings, sensor: str = ""
) -> dict[str, ColumnRole]:
    """Return the roles of the columns of a file, or of a sensor's file, by their names."""
    header = header_of(path, settings.names)
    if not header:
        raise DataError(f"{path} is empty; it needs a header and a row for each sample")
    full = full_names(sensor, header, settings.columns)
    alone = spelled(header, settings.columns)
    words = {
        name: role
        for name in header
        for role in [
            settings.columns.get(full[name])
            or settings.columns.get(alone[name])
            or role_by_pattern(settings.columns, (full[name], name))
        ]
        if role
    }
    roles, several = roles_in(path, header, words, settings.names)
    of_names = f"If each says 1 or 0, call the columns {NAMED}NAME. To take one: "
    if several:
        way = of_names if several[0].lower().startswith(LABEL) else ""
        raise DataError(
            f"{path}: {in_words(several)} could all be the label. {way}"
            + add_line(role_line(LABEL, several[0]))
        )
    labels = [name for name, role in roles.items() if role.role == LABEL]
    if len(of_classes := class_columns(roles)) > 1 and any(
        roles[name].reason != USER for name in of_classes
    ):
        raise DataError(several_labels_error(path, of_classes))
    kinds = {
        name.split(".")[0] + "." if name.startswith((NAMED, TARGET)) else LABEL for name in labels
    }
    if len(kinds) > 1:
        raise DataError(
            f"{path}: labels must be in columns of one kind: {LABEL}, or {NAMED}NAME for each "
            f"name, or {TARGET}NAME for each quantity, got {', '.join(labels)}"
        )
    if NAMED in labels or TARGET in labels:
        raise DataError(
            f"{path}: columns of labels must have different names after the point, got "
            f"{', '.join(labels)}"
        )
    return roles


def _is_left_out(path: TableSource, sensor: str, settings: FolderSettings) -> bool:
    """Return True if a user leaves out columns of a file, and it has no channel besides."""
    if LEFT_OUT not in settings.columns.values():
        return False
    roles = roles_of(path, settings, sensor).values()
    return all(role.role != CHANNEL for role in roles) and any(
        role.role == LEFT_OUT and role.reason == USER for role in roles
    )


def _check_alike(
    device: FolderScan,
    source: RecordingFiles,
    roles: Mapping[str, ColumnRole],
    expected: Mapping[str, ColumnRole],
) -> None:
    """Raise DataError if a recording has other channels, or other labels, than are expected."""
    path, first = source.files[0][1], device.sources[0].files[0][1]
    for role, what in ((CHANNEL, "channels"), (LABEL, "labels")):
        mine, theirs = (
            [name for name, each in columns.items() if each.role == role]
            for columns in (roles, expected)
        )
        plainly = role == LABEL and all(
            not name.startswith((NAMED, TARGET)) for name in (*mine, *theirs)
        )
        if not plainly and (sorted(mine) != sorted(theirs) or (role == LABEL and mine != theirs)):
            way = without_others(mine, theirs)
            if role == CHANNEL and mine and not set(mine) & set(theirs):
                way = (
                    "If it is another sensor at the same time, name the files alike but for the "
                    "sensor, as walk_acc.csv and walk_gyr.csv. If both measure the same, name the "
                    f"columns alike. To leave it out: {add_line(role_line(LEFT_OUT, *mine))}"
                )
            elif role == CHANNEL and has_labels_alone(path, device.settings.names):
                way = (
                    "It has classes alone, and does not say of which recording beside it. To take "
                    + f"one: {add_line(f'recordings = [{json.dumps(first.name)}]')}"
                )
            elif role == CHANNEL and not mine:
                way = "It has no measurements: keep it in another folder."
            raise DataError(
                f"{path}: {what} must be {', '.join(theirs) or 'none'}, as in {first.name}, got "
                f"{', '.join(mine) or 'none'}. {way}"
            )


def _scan_file(
    device: FolderScan,
    source: RecordingFiles,
    sensor: str,
    path: TableSource,
    roles: dict[str, ColumnRole],
    full: Mapping[str, str],
) -> None:
    """Add the facts of one file to `device`. `full` has the names of its columns in the device."""
    labels, time = class_columns(roles), next(iter(times_in(roles)), "")
    content, hashes, flags_of_file = hashlib.blake2b(digest_size=16), list[Array](), {*roles}
    times, tracks, count = list[tuple[Array, bool]](), list[Array](), 0
    dividers, number_of_track = dividers_in(roles), dict[tuple[str, ...], int]()
    previous = dict.fromkeys(roles, np.nan)
    ends = dict[str, int]()
    bounds = dict.fromkeys(roles, (np.inf, -np.inf))
    others = [name for name, role in roles.items() if role.role not in (CHANNEL, LABEL)]
    device.names |= {*roles, *(full_name(sensor, name) for name in roles)}
    if is_text_file(path):
        form = form_of(path)
        device.needs_names |= not form.has_header or tuple(roles) != form.first[: len(roles)]
    for part in parts_of(path, device.settings.names, (), others):
        count += len(part.lines)
        device.missing |= {f"{n:.15g}" for n in empty_numbers(part, device.settings.missing)}
        same_time, hashed = np.zeros(0, bool), np.zeros(len(part.lines), np.uint64)
        if time:
            t, are_dates = times_of(device, path, roles, part)
            same_time, hashed = t[1:] == t[:-1], row_hashes(hashed, t)
            t = t if count <= FIRST else t[:0]
            times.append((t, are_dates))
            if dividers:
                tracks_here = tracks_of(part, dividers, number_of_track)
                tracks.append(tracks_here[: len(t)])
                hashed = row_hashes(hashed, tracks_here)
                same_time = same_time[:0]  # rows of one time are of other persons
        codes = None
        if labels:
            codes = np.full(len(part.lines), NO_LABEL)
            label_cells = class_cells(path, part, labels)
            texts, first, inverse = class_texts(label_cells)
            device.labels |= set(texts)
            if path not in source.labels and True not in device.label_steps:
                has_label = has_cell(label_cells)
                device.label_steps |= set(has_label[1:][has_label[:-1]].tolist())
            for i, text in enumerate(device.settings.classes.get(text, text) for text in texts):
                if text:
                    device.texts.setdefault(text, (path, int(part.lines[first[i]])))
                    codes[inverse == i] = device.numbers.setdefault(text, len(device.numbers))
            numbered = codes[codes != NO_LABEL]
            at = np.flatnonzero(numbered[1:] != numbered[:-1])
            for number in (*numbered[at].tolist(), *numbered[at + 1].tolist()):
                device.changes[number] = device.changes.get(number, 0) + 1
        flags = dict[str, Array]()
        for name, role in roles.items():
            if role.role == PERSON:
                device.persons |= set(np.unique(texts_of(part.columns[name])).tolist()) - {""}
            if role.reason == DIVIDES and (device.settings.recordings or is_position(name)):
                device.places |= set(np.unique(texts_of(part.columns[name])).tolist()) - {""}
            if role.role != CHANNEL:
                continue
            facts = device.facts.setdefault(full[name], ColumnFacts())
            numbers, wrong = read_numbers(part.columns[name])
            column, hashed = part.columns[name], row_hashes(hashed, numbers)
            if len(same_time):
                facts.same_time += int(same_time.sum())
                facts.same_cell += int((same_time & (column[1:] == column[:-1])).sum())
            if (says_one := flags_of(column)) is None:
                flags_of_file.discard(name)
            elif name in flags_of_file:
                flags[full[name]] = says_one
            has_texts = column.dtype.kind == "U" and not facts.count
            if marked := marked_thousands(column[:FIRST_CELLS].tolist() if has_texts else []):
                raise DataError(
                    f"{path}, column {name}: {marked!r} may be a number with a mark of thousands, "
                    "because each mark is before three digits and no other number is above 999. "
                    "Write the numbers without these marks."
                )
            if wrong is not None and facts.wrong is None:
                text = str(part.columns[name][wrong])
                facts.wrong = at_row(path, part.lines[wrong]), text
            large = np.abs(numbers) > LARGEST
            if large.any():
                place = at_row(path, part.lines[np.flatnonzero(large)[0]])
                raise DataError(
                    f"{place}, column {name} must hold finite values, got {numbers[large][0]}. If "
                    f"it stands for no value: {add_line(missing_line(numbers[large][:1]))}"
                )
            facts.add(numbers, codes, previous[name])
            whole = numbers[np.isfinite(numbers)]
            facts.add_stretches(whole if wrong is None else part.columns[name])
            if len(whole):
                ends[name] = count - len(numbers) + int(np.flatnonzero(np.isfinite(numbers))[-1])
                previous[name] = float(whole[-1])
                low, high = bounds[name]
                bounds[name] = min(low, float(whole.min())), max(high, float(whole.max()))
        for one, other in combinations_with_replacement(flags, 2):
            both = int((flags[one] & flags[other]).sum())
            device.flags[one, other] = device.flags.get((one, other), 0) + both
        content.update(hashed.tobytes())
        hashes.append(hashed if count <= FIRST else hashed[:0])
    for name, (low, high) in bounds.items():
        if (key := full[name]) in device.facts:
            device.facts[key].end(low, high)
    device.rows.append(count)
    early = [full[name] for name, row in ends.items() if row < EARLY * count]
    if 0 < len(early) < len(ends) and count >= FEWEST_TIMES:
        device.again.append(
            f"{path}: {in_words(early)} {'has' if len(early) == 1 else 'have'} no value in the "
            "last half of the rows, as columns of another rate beside faster ones. Write the "
            "columns of each rate, with their time, to a file of their own, as walk_acc.csv and "
            f"walk_emg.csv. To leave them out: {add_line(role_line(LEFT_OUT, *early))}"
        )
    if any(low < high for low, high in bounds.values()) and count >= FEWEST_TIMES:
        name = path.name if source.files[1:] else source.name
        if (other := device.contents.setdefault(content.digest(), name)) != name:
            device.again.append(copy_remark(other, name))
    if times:
        t = np.concatenate([numbers for numbers, _ in times])
        are_dates = all(of_dates for _, of_dates in times)
        of_rows = np.concatenate(tracks) if tracks else None
        is_new, remark = new_rows(t, np.concatenate(hashes))
        if are_intervals(path):  # one may end where the next begins
            is_new, remark = np.arange(len(t)), ""
        if remark:
            device.again.append(f"{path}: {remark}")
        if len(is_new) < len(t):
            device.repeated.add(str(path))
            t, of_rows = t[is_new], None if of_rows is None else of_rows[is_new]
        unit = to_seconds(path, time, t, of_rows, are_dates, device.units[-1])
        has_rate = unit and any(role.role == CHANNEL for role in roles.values())
        rates = list[tuple[float, int]]()
        for cells, number in number_of_track.items():
            track = t[of_rows == number] if has_rate and of_rows is not None else t[:0]
            if is_chosen_track(device, source, cells):
                rates.append((rate_of(track), len(track)))
                if not source.files[1:]:  # slower sensors are filled in
                    device.of_tracks.setdefault(cells, []).append(rates[-1])
        rate = usual_rate(rates) if dividers else rate_of(t) if has_rate else 0.0
        if rate > LARGEST_RATE_HZ:
            raise DataError(
                f"{path}: the times of column {time!r} would be {rate:.3g} samples a second. Say "
                f"their unit: one of {', '.join(UNIT_NAMES)}. {add_line(UNIT_LINE)}"
            )
        alone = rate and not (dividers or source.files[1:] or device.settings.rate)
        if alone and (even := rate_without_bursts(t, rate)):
            device.again.append(
                f"{path}: half of the rows come within {1 / rate:.3g} s, and a second has about "
                f"{even:g} rows, as where rows are written in bursts, so most samples are made up. "
                + add_line(f"rate = {comment_rate(path) or even:g}")
            )
        if has_rate and not (are_dates or device.units[-1] or named_unit(time)):
            device.time_units[full[time]] = unit
        device.rates.append((rate, count))
        if has_rate and len(t) and np.nanmin(t) >= SINCE_1970[0] and not source.files[1:]:
            device.spans.append((float(np.nanmin(t)), float(np.nanmax(t)), source.name))
    elif rate := comment_rate(path):
        device.rates.append((rate, count))
    else:
        if source.files[1:] and not (device.settings.rate and _has_no_time(device, source)):
            raise DataError(
                f"{path}: the files of a recording with one file for each sensor are joined by "
                f"their time, and no column is one. {_time_line(device, source, sensor, roles)}"
            )
        device.rates.append((0.0, count))


def comment_rate(path: TableSource) -> float:
    """Return the rate (Hz) in the comments of a file, 0 if there is none."""
    return form_of(path).comment_rate_hz if is_text_file(path) else 0.0


def are_intervals(path: TableSource) -> bool:
    """Return True if the rows of a table are intervals with a label, each read as two rows."""
    return is_text_file(path) and form_of(path).intervals is not None


def common_unit(source: RecordingFiles, settings: FolderSettings) -> str:
    """Return the unit of the times of a recording: a user's, or that of the fastest of its files.

    It is "" if each file says its own. Seconds of a slow sensor, or of labels, look like
    milliseconds.
    """
    if settings.time_unit or not source.files[1:]:
        return settings.time_unit
    units, names = list[tuple[float, str]](), set[str]()
    for sensor, path in source.files:
        if not is_text_file(path):
            return ""
        roles = roles_of(path, settings, sensor)
        for i, role in enumerate(roles.values()):
            if role.role != TIME:
                continue
            cells = [row[i] for row in first_rows(path, FEWEST_TIMES) if i < len(row)]
            numbers, wrong = read_numbers(np.array(cells, str))
            steps = np.diff(numbers)
            says_none = not unit_of_time(role.name, np.zeros(1))
            if path in source.labels and says_none and (np.abs(numbers) < SINCE_1970[0]).all():
                continue  # its times are as far apart as a class is long
            names.add(plain(role.name))
            if wrong is None and (steps > 0).any():
                usual = float(np.median(steps[steps > 0]))
                units.append((usual, unit_of_time(role.name, numbers)))
    return min(units)[1] if len(names) == 1 and units else ""


def _has_no_time(device: FolderScan, source: RecordingFiles) -> bool:
    """Return True if no file of a recording has a column of times."""
    return not any(
        role.role == TIME
        for sensor, path in source.files
        for role in roles_of(path, device.settings, sensor).values()
    )


def _time_line(
    device: FolderScan, source: RecordingFiles, sensor: str, roles: Mapping[str, ColumnRole]
) -> str:
    """Return the sentence of an error that says which column of a file may be its time."""
    for name in roles:
        facts = device.facts.get(full_name(sensor, name))
        if is_number_of_row(name) or (facts and facts.up > 0.9 * max(1, facts.up + facts.down)):
            return add_line(role_line(TIME, name))
    if _has_no_time(device, source):
        return (
            "If row after row of all of them belong together, say how many a second, such as 50. "
            + add_line("rate = 50")
        )
    return "Give each file a column of times, or keep the files in folders of their own."


def dividers_in(roles: Mapping[str, ColumnRole]) -> list[str]:
    """Return the names of the columns that divide a file into tracks, the person ("") first."""
    person = next((name for name, each in roles.items() if each.role == PERSON), "")
    names = [person, *(name for name, each in roles.items() if each.reason == DIVIDES)]
    return names if any(names) else []


def tracks_of(
    part: TablePart, dividers: Sequence[str], number_of_track: dict[tuple[str, ...], int]
) -> Array:
    """Return the number (n,) of each row's track; tracks without one are added to the numbers."""
    count = len(part.lines)
    cells = [texts_of(part.columns[name]) if name else np.full(count, "") for name in dividers]
    codes = np.zeros(count, np.int64)
    for column in cells:
        words, inverse = np.unique(column, return_inverse=True)
        codes = codes * len(words) + inverse
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    numbers = [
        number_of_track.setdefault(tuple(str(column[i]) for column in cells), len(number_of_track))
        for i in first.tolist()
    ]
    return np.array(numbers, np.int32)[inverse]


def to_seconds(
    path: TableSource, name: str, t: Array, tracks: Array | None, are_dates: bool, unit: str
) -> str:
    """Convert the times (n,) of a file to seconds in place; return their unit.

    It is "", and the times are as they were, if they only count samples. Where rows of tracks
    alternate, those of each track are a series of their own.

    Args:
        path: the file.
        name: name of the column of times.
        t: the times.
        tracks: number (n,) of each row's track; None if nothing divides the rows.
        are_dates: True if the times are seconds already.
        unit: unit of the times; "" if they say it.
    """
    places: list[Array | slice] = [slice(None)]
    count = 0 if tracks is None else len(np.unique(tracks))
    if tracks is not None and np.count_nonzero(np.diff(tracks)) > 2 * count:
        places = [np.flatnonzero(tracks == number) for number in range(count)]
    has_intervals = are_intervals(path)
    first = t[places[0]]
    unit = read_unit(path, name, np.sort(first[::2]) if has_intervals else first, are_dates, unit)
    for rows in places if unit else ():
        track = t[rows]
        in_seconds(track, (UNITS | LONG_UNITS)[unit], are_dates, not has_intervals)
        t[rows] = track
    return unit


def times_in(roles: Mapping[str, ColumnRole]) -> list[str]:
    """Return the names of the time and of its date, the time first; none without a time."""
    times = [name for name, role in roles.items() if role.role == TIME]
    return times + [name for name, role in roles.items() if times and role.reason == DATE]


def times_of(
    device: FolderScan, path: TableSource, roles: Mapping[str, ColumnRole], part: TablePart
) -> tuple[Array, bool]:
    """Return the times of a part, and True if they are dates, in seconds.

    The first date that says if days come before months says it for all files of `device`.
    """
    name, *dates = times_in(roles)
    column, lines = part.columns[name], part.lines
    for other in dates:
        column = with_dates(column, part.columns[other])
    device.date_order = days_first(column) | device.date_order
    numbers, are_dates, wrong = read_times(column, device.date_order, device.settings.time_unit)
    if wrong is not None and re.fullmatch(r"\d+:\d+", str(column[wrong]).strip()):
        raise DataError(
            f"{at_row(path, lines[wrong])}, column {name}: {str(column[wrong])!r} may be minutes "
            "and seconds, or hours and minutes. Say the unit of its first number, min or h. "
            + add_line('time_unit = "min"')
        )
    if wrong is not None and str(column[wrong]).strip() == name:
        raise DataError(
            f"{at_row(path, lines[wrong])}, column {name}: {name!r} is no time: the header comes "
            "again. Remove each such line. If another recording begins there, write its rows to a "
            "file of its own."
        )
    if wrong is not None:
        raise DataError(
            f"{at_row(path, lines[wrong])}, column {name}: {str(column[wrong])!r} is no time: a "
            "number, or a date such as 2026-01-31T12:00:00.02. If the column is none: "
            + add_line(role_line(LEFT_OUT, name))
        )
    if are_dates and (row := fraction_without_zeros(column)) is not None:
        raise DataError(
            f"{at_row(path, lines[row])}, column {name}: {str(column[row])!r} comes after "
            f"{str(column[row - 1])!r}, so fractions of seconds lack zeros at their beginning. "
            "Write all fractions with the same number of digits."
        )
    return numbers, are_dates


def read_unit(path: TableSource, name: str, times: Array, are_dates: bool, unit: str) -> str:
    """Return the unit of times, "" if they only count samples.

    `unit`: unit from the settings; "" to take it from the first numbers.

    Raises:
        DataError: the times often fall.
    """
    finite = times[:FIRST][np.isfinite(times[:FIRST])]
    steps = np.diff(finite)
    if len(steps) and (steps < 0).sum() > 0.2 * len(steps):
        raise DataError(
            f"{path}: column {name!r} has the name of a time, and its values fall in "
            f"{(steps < 0).mean():.0%} of the rows. Sort the rows by it. If it is a channel: "
            + add_line(role_line(CHANNEL, name))
        )
    return "s" if are_dates else unit_of_time(name, finite, unit)
