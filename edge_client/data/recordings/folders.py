"""Recordings in a device's folder: their files."""

import fnmatch
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edge_client.data.labels import NAMED, TARGET
from edge_client.data.recordings.unread import files_in, others_of
from edge_client.data.tables.clock import read_times
from edge_client.data.tables.parts import (
    ColumnNames,
    TableSource,
    header_of,
    is_of_file,
    is_table,
    is_text_file,
    parts_of,
)
from edge_client.data.tables.roles import (
    CHANNEL,
    LABEL,
    MISSING,
    NUMBER_OF_ROW,
    PERSON,
    PERSONS,
    TIME,
    ColumnRole,
    RoleName,
    by_name,
    plain,
)
from edge_client.data.tables.text_form import (
    first_rows,
    form_of,
    intervals_in,
    is_number,
    stem_of,
    text_of,
)
from edge_client.data.tables.words import FolderSettings
from edge_client.settings import LENGTH as LENGTH
from edge_client.settings import STRIDE as STRIDE
from wire.arrays.tensors import Array
from wire.errors import DataError

CLASSES = "classes.txt"
FIRST = 1000
"""Number of rows whose cells say if an ``id`` is a person's."""
NO_DATA = frozenset(("metadata", "annotation", "annotations", "studymetadata", "readme"))
"""Names of files without classes that programs write beside the samples."""
BESIDE = re.compile(
    r"battery|location|gps|pedometer|steps?|microphone|camera|network|wifi|bluetooth.*|cell.*|"
    r"activity|device|settings|markers?|events?|log|labels?|ibi|tags?",
    re.IGNORECASE,
)
"""Names of files that programs write beside those of sensors, without regular samples."""
SENSORS = re.compile(
    r"(?:(?:linear|lin|total|raw|absolute|watch|wrist|phone)[ _-]?)*(?:heart[ _-]?rate|(?<![a-z])"
    r"(?:hr|bvp|ppg|eda|gsr|ecg|emg|temp|pulse|spo2|resp|mag)(?![a-z])|"
    r"[a-z]*(?:acc|gyr|magnet|gravity|orient|barom|pressure|heart|light|rotation|acceleration|"
    r"temperature|humidity)[a-z]*)",
    re.IGNORECASE,
)
"""Name of a sensor in the name of a file that has this sensor alone."""


PERSON_NAME = re.compile(
    r"(p|sub|subj|subject|user|person|participant|volunteer|proband|patient)[ _-]?\d+",
    re.IGNORECASE,
)
"""Name of a file, or of a folder, of one person."""
POSITIONS = re.compile(
    r"left|right|(left|right|upper|lower|l|r)?"
    r"(chest|forearm|head|shin|thigh|arm|upperarm|waist|wrist|ankle|pocket|hip|hand|back|leg|"
    r"belt|foot|neck|shank|torso|pelvis|sternum|phones?|watch)"
    r"(left|right|l|r)?",
    re.IGNORECASE,
)
"""Places on a body, and kinds of devices, in the names of recordings."""


RATE = re.compile(r"\d+(\.\d+)?[ _-]?hz", re.IGNORECASE)
"""Rate in the name of a sensor's file."""


class RecordingFiles(NamedTuple):
    """One recording: its name, and its files by sensor; the sensor of a single file is ""."""

    name: str
    files: tuple[tuple[str, TableSource], ...]
    beside: tuple[str, ...] = ()
    """Names of the files beside it that are no recordings."""
    folder: str = ""
    """Name of the folder of its device, or of all devices."""

    @property
    def labels(self) -> list[TableSource]:
        """Files of times and classes alone beside those of the samples."""
        return [path for sensor, path in self.files if not sensor and self.files[1:]][-1:]


def is_named(pattern: str, source: RecordingFiles) -> bool:
    """Return True if a pattern is one of a recording's name, of its end, or of its file's name.

    A pattern with a ``/`` may begin with the name of the device's folder.
    """
    parts = source.name.split("/")
    ends = ("/".join(parts[i:]) for i in range(len(parts)))
    files = [path.name for _, path in source.files]
    names = [*ends, *files, *(stem_of(Path(name)) for name in files)]
    names += [f"{source.folder}/{source.name}"] if "/" in pattern else []
    return any(fnmatch.fnmatch(name, pattern) for name in names)


def is_chosen(patterns: Sequence[str], source: RecordingFiles) -> bool:
    """Return True if a recording is to be read."""
    return not patterns or any(is_named(pattern, source) for pattern in patterns)


def person_in(name: str) -> str:
    """Return the person by whom a recording's file, or a folder of it, is called, or ""."""
    return next(filter(PERSON_NAME.fullmatch, reversed(name.split("/"))), "")


def position_in(name: str) -> str:
    """Return the place on a body, or the kind of device, in the name of a recording, or ""."""
    words = re.findall(r"[a-zA-Z]+", name)
    return next((word for word in reversed(words) if POSITIONS.fullmatch(word)), "")


def usual_stride(length: int) -> int:
    """Return the samples between the starts of two windows, so that none is left out."""
    return min(STRIDE, max(1, length // 2))


def classes_of(folder: Path) -> tuple[str, ...]:
    """Return the classes in ``classes.txt`` of a folder, in their order; none without that file.

    Raises:
        DataError: the file is no text, or lists a name twice.
    """
    path = folder / CLASSES
    if not path.exists():
        return ()
    names = tuple(name for name in text_of(path).replace("\r\n", "\n").split("\n") if name)
    if twice := [name for at, name in enumerate(names) if name in names[:at]]:
        raise DataError(f"{path} lists class {twice[0]!r} twice; list each class once")
    return names


def recordings_in(folder: Path) -> list[Path]:
    """Return the paths of the tables in a folder, sorted by name.

    Raises:
        DataError: two differ only in the suffix, like copies of one recording.
    """
    paths = sorted(
        path
        for path in folder.iterdir()
        if path.name != CLASSES and path.is_file() and is_table(path)
    )
    for path in paths:
        if persons := _persons_of_intervals(path):
            raise DataError(
                f"{path}: intervals of several persons in one file are not read. Make a folder for "
                f"each person, with the recording and a file of that person's intervals, without "
                f"column {persons!r}"
            )
    paths = [p for p in paths if stem_of(p).lower() not in NO_DATA or has_labels_alone(p)]
    for path, following in pairwise(paths):
        if stem_of(path) == stem_of(following):
            raise DataError(
                f"data folder {folder}: {path.name} and {following.name} have the same name; keep "
                "each recording once"
            )
    return paths


def sources_in(folder: Path, settings: FolderSettings) -> list[RecordingFiles]:
    """Return the recordings of a device's folder and of the folders in it, sorted by name.

    Files whose names differ only in the name of a sensor are one recording. `settings` may choose
    recordings; all are read if they choose none.

    Raises:
        DataError: two files differ only in the suffix.
    """
    tables = _tables_in(folder)
    return with_others(grouped(tables, folder, settings), others_of(files_in(folder), tables))


def with_others(sources: Sequence[RecordingFiles], names: Sequence[str]) -> list[RecordingFiles]:
    """Return recordings with these names too of files beside them that are not read."""
    return [source._replace(beside=(*source.beside, *names)) for source in sources]


def grouped(paths: Sequence[Path], folder: Path, settings: FolderSettings) -> list[RecordingFiles]:
    """Return tables in a folder as recordings: those that differ only in a sensor's name are one.

    The sensor may be in the name of the file or of its folder. Tables without any number, and those
    that programs write beside sensors, are no recordings if there are others.
    """
    groups: dict[str, dict[str, Path]] = {}
    for path in paths:
        parts = [*path.relative_to(folder).parts[:-1], stem_of(path)]
        matches = [SENSORS.search(part) for part in parts]
        rest = "/".join(
            part if match is None else RATE.sub("", part.replace(match[0], "", 1))
            for part, match in zip(parts, matches, strict=True)
        )
        sensor = next(filter(None, map(sensor_in, reversed(parts))), "")
        same = groups.setdefault(rest, {})
        same[sensor if sensor not in same else "/".join(parts)] = path
    sources, called = list[RecordingFiles](), folder.resolve().name
    for rest, same in groups.items():
        if len(same) > 1 and "" not in same:
            name = "/".join(part.strip(" _-") for part in Path(rest).parts).strip("/")
            sources.append(RecordingFiles(name or called, tuple(same.items()), (), called))
        else:
            for path in same.values():
                name = (path.relative_to(folder).parent / stem_of(path)).as_posix()
                sources.append(RecordingFiles(name, (("", path),), (), called))
    if any(is_chosen(settings.recordings, source) for source in sources):
        sources = [
            source
            for source in sources
            if is_chosen(settings.recordings, source)
            or has_labels_alone(source.files[0][1], settings.names)
        ]
    sources = [_chosen_files(source, settings) for source in sources]
    sources = _of_persons(_with_labels(sources, settings.names), called)
    with_sensors = {
        path.parent
        for same in groups.values()
        for sensor, path in same.items()
        if len(same) > 1 or sensor == stem_of(path)
    }
    alone = {
        source.name: path
        for source in sources
        for _, path in source.files
        if len(source.files) == 1 and isinstance(path, Path)
    }
    others = {
        name: path.name
        for name, path in alone.items()
        if (path.parent in with_sensors and BESIDE.fullmatch(stem_of(path)))
        or not _has_samples(path, settings.names)
    }
    if len(others) == len(sources):
        return sorted(sources)
    beside = tuple(sorted(set(others.values())))
    return sorted(s._replace(beside=beside) for s in sources if s.name not in others)


def _chosen_files(source: RecordingFiles, settings: FolderSettings) -> RecordingFiles:
    """Return a recording with the files of sensors that a user chooses by name, all if none is."""
    patterns = settings.recordings
    alone = source._replace(files=())
    if len(source.files) == 1 or any(is_named(pattern, alone) for pattern in patterns):
        return source
    files = [f for f in source.files if any(is_of_file(p, Path(str(f[1]))) for p in patterns)]
    return source._replace(files=tuple(files) or source.files)


def roles_in(
    path: TableSource,
    header: Sequence[str],
    columns: Mapping[str, RoleName],
    names: ColumnNames,
) -> tuple[dict[str, ColumnRole], list[str]]:
    """Return `by_name`, and what the first cells of columns say.

    An ``id`` of which two are alike is a person, not a row. If no name is of a time, the only
    column of dates is the time.
    """
    roles, several = by_name(header, columns)
    free = [name for name in header if name not in columns]
    ids = [name for name in free if plain(name) == "id"]
    has_time = any(role.role == TIME for role in roles.values())
    may_be_dates = [
        name
        for name in ([] if has_time else free)
        if roles[name].role == CHANNEL or roles[name].reason == NUMBER_OF_ROW
    ]
    first = _first_cells(path, header, names, {*ids, *may_be_dates})
    for name in ids:
        cells = [cell for cell in first[name].astype(str).tolist() if cell.lower() not in MISSING]
        if len(set(cells)) < len(cells):
            roles[name] = ColumnRole(name, PERSON)
    dates = list[str]()
    for name in may_be_dates:
        times, are_dates, _ = read_times(first[name][:2])
        if are_dates and len(times) and np.isfinite(times).all():
            dates.append(name)
    if len(dates) == 1:
        roles[dates[0]] = ColumnRole(dates[0], TIME, "its cells are dates")
    return roles, several


def _first_cells(
    path: TableSource, header: Sequence[str], names: ColumnNames, columns: Collection[str]
) -> dict[str, Array]:
    """Return the first cells (`FIRST`,) of columns, fewer if there are fewer rows."""
    if not columns:
        return {}
    if is_text_file(path):
        rows, places = first_rows(path, FIRST), {name: header.index(name) for name in columns}
        return {
            name: np.array([row[at] for row in rows if at < len(row)], str)
            for name, at in places.items()
        }
    part = next(parts_of(path, names, [*columns]), None)
    return {name: part.columns[name][:FIRST] if part else np.array([], str) for name in columns}


def sensor_in(name: str) -> str:
    """Return the sensor in the name of a file or folder, or "" if it names none."""
    match = SENSORS.search(name)
    return match[0].strip(" _-") if match else ""


def _with_labels(sources: Sequence[RecordingFiles], names: ColumnNames) -> list[RecordingFiles]:
    """Return recordings, those with a file of times and classes alone beside them joined with it.

    A folder with several other recordings does not say of which of them the classes are.
    """
    labels = [s for s in sources if not s.files[1:] and has_labels_alone(s.files[0][1], names)]
    joined = [source for source in sources if source not in labels]
    for source in labels:
        path = source.files[0][1]
        same = [i for i, other in enumerate(joined) if _parent(other) == _parent(source)]
        if len(same) == 1 and not joined[same[0]].labels:
            joined[same[0]] = joined[same[0]]._replace(files=(*joined[same[0]].files, ("", path)))
        else:
            joined.append(source)
    return joined


def _of_persons(sources: list[RecordingFiles], called: str) -> list[RecordingFiles]:
    """Return recordings; as one if each is of another sensor and all have persons and times.

    The sensors have the names of their files.
    """
    paths = [path for s in sources for _, path in s.files if isinstance(path, Path)]
    channels = set[str]()
    if not len(paths) == len(sources) > 1:
        return sources
    for path in paths:
        if not is_text_file(path) or not form_of(path).has_header:
            return sources
        columns = roles_in(path, form_of(path).first, {}, ())[0].values()
        mine = {column.name.lower() for column in columns if column.role == CHANNEL}
        if not {TIME, PERSON, CHANNEL} <= {c.role for c in columns} or mine & channels:
            return sources
        channels |= mine
    files = tuple((stem_of(path), path) for path in paths)
    return [RecordingFiles(called, files, (), called)]


def _parent(source: RecordingFiles) -> Path:
    return Path(str(source.files[0][1])).parent


def _persons_of_intervals(path: Path) -> str:
    """Return the column that names the persons of intervals with labels, "" if they name none."""
    if not is_text_file(path) or not form_of(path).has_header:
        return ""
    header = form_of(path).first
    names = [name for name in header if plain(name) in PERSONS]
    rest = [name for name in header if name not in names]
    return names[0] if len(names) == 1 and intervals_in(rest) else ""


def has_labels_alone(path: TableSource, names: ColumnNames = ()) -> bool:
    """Return True if a text has a time and classes, and no measurement."""
    if not is_text_file(path) or not (form_of(path).has_header or isinstance(names, Mapping)):
        return False
    form = form_of(path)
    header = form.first if form.has_header else header_of(path, names)
    columns = by_name(header, {})[0].values()
    classes = [c for c in columns if c.role == LABEL and not c.name.startswith((NAMED, TARGET))]
    roles = {column.role for column in columns}
    return bool(classes) and TIME in roles and CHANNEL not in roles


def _has_samples(path: Path, names: ColumnNames) -> bool:
    """Return False if a text is empty, has no number in a channel at first, or is a list of names.

    A list such as ``1 mains`` has the numbers of its rows, and texts.
    """
    if not is_text_file(path):
        return True
    header, rows = form_of(path).first, first_rows(path)
    if not form_of(path).has_header or any(map(is_number, header)):
        rows = [[*header], *rows] if form_of(path).has_header else rows
        columns = [*zip_longest(*rows, fillvalue="")]
        numbers = [[*cells] for cells in columns if all(map(is_number, cells))]
        counts = [[str(i) for i in range(begin, begin + len(rows))] for begin in (0, 1)]
        is_list = all(cells in counts for cells in numbers) and len(columns) > 1
        return not rows or not is_list or has_labels_alone(path, names)
    channels = [i for i, role in enumerate(by_name(header, {})[0].values()) if role.role == CHANNEL]
    if not header:
        return False
    return not rows or any(is_number(row[i]) for row in rows for i in channels if i < len(row))


def _tables_in(folder: Path) -> list[Path]:
    """Return the paths of the tables in a folder and in the folders in it."""
    paths = recordings_in(folder)
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
        if not inner.name.startswith(".") and inner.name.lower() != "meta":
            paths += _tables_in(inner)
    return paths
