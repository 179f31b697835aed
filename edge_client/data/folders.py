"""Recordings in a device's folder: their files."""

import fnmatch
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from edge_client.data.roles import (
    CHANNEL,
    by_name,
)
from edge_client.data.tables import (
    PARQUET,
    TableSource,
    first_rows,
    form_of,
    header_of,
    is_number,
    is_table,
    stem_of,
)
from edge_client.settings import LENGTH as LENGTH
from edge_client.settings import STRIDE as STRIDE
from wire.errors import DataError

CLASSES = "classes.txt"
NO_DATA = frozenset(("metadata", "annotation", "annotations", "studymetadata", "readme"))
"""Names of files that programs write beside the samples."""
BESIDE = re.compile(
    r"battery|location|gps|pedometer|steps?|microphone|camera|network|wifi|bluetooth.*|cell.*|"
    r"activity|device|settings|markers?|events?|log",
    re.IGNORECASE,
)
"""Names of files that programs write beside those of sensors, without regular samples."""
SENSORS = re.compile(
    r"(?:(?:linear|total|raw|absolute|watch|wrist|phone)[ _-]?)*[a-z]*(?:acc|gyr|magnet|gravity|"
    r"orient|barom|pressure|heart|light|rotation|acceleration|temperature|humidity)[a-z]*",
    re.IGNORECASE,
)
"""Name of a sensor in the name of a file that has this sensor alone."""


PERSON_NAME = re.compile(
    r"(sub|subj|subject|user|person|participant|volunteer|proband|patient)[ _-]?\d+", re.IGNORECASE
)
"""Name of a file, or of a folder, of one person."""
POSITIONS = re.compile(
    r"(left|right|upper|lower|l|r)?(chest|forearm|head|shin|thigh|arm|upperarm|waist|wrist|ankle|"
    r"pocket|hip|hand|back|leg|belt|foot|neck|shank|torso|pelvis|sternum|phones?|watch)"
    r"(left|right|l|r)?",
    re.IGNORECASE,
)
"""Places on a body, and kinds of devices, in the names of recordings."""


class RecordingFiles(NamedTuple):
    """One recording: its name, and its files by sensor; the sensor of a single file is ""."""

    name: str
    files: tuple[tuple[str, TableSource], ...]
    beside: tuple[str, ...] = ()
    """Names of the files beside it that are no recordings."""


def is_named(pattern: str, source: RecordingFiles) -> bool:
    """Return True if a pattern is one of a recording's name, of its end, or of its file's name."""
    parts = source.name.split("/")
    ends = ("/".join(parts[i:]) for i in range(len(parts)))
    names = [*ends, *(path.name for _, path in source.files)]
    return any(fnmatch.fnmatch(name, pattern) for name in names)


def is_chosen(patterns: Sequence[str], source: RecordingFiles) -> bool:
    """Return True if a recording is to be read."""
    return not patterns or any(is_named(pattern, source) for pattern in patterns)


def person_in(name: str) -> str:
    """Return the person in the name of a recording whose file is called by a person, or ""."""
    return last if PERSON_NAME.fullmatch(last := name.rpartition("/")[2]) else ""


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
        DataError: the file is not text, or lists a name twice.
    """
    path = folder / CLASSES
    if not path.exists():
        return ()
    try:
        names = tuple(name for name in path.read_text("utf-8-sig").split("\n") if name)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not text in UTF-8: {error.reason} at byte {error.start}"
        ) from None
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
    paths = [path for path in paths if stem_of(path).lower() not in NO_DATA]
    for path, following in pairwise(paths):
        if stem_of(path) == stem_of(following):
            raise DataError(
                f"data folder {folder}: {path.name} and {following.name} have the same name; keep "
                "each recording once"
            )
    return paths


def sources_in(folder: Path) -> list[RecordingFiles]:
    """Return the recordings of a device's folder and of the folders in it, sorted by name.

    Files whose names differ only in the name of a sensor are one recording.

    Raises:
        DataError: two files differ only in the suffix.
    """
    return grouped(_tables_in(folder), folder)


def grouped(paths: Sequence[Path], folder: Path) -> list[RecordingFiles]:
    """Return tables in a folder as recordings: those that differ only in a sensor's name are one.

    The sensor may be in the name of the file or of its folder. Tables without any number, and those
    that programs write beside sensors, are no recordings if there are others.
    """
    groups: dict[str, dict[str, Path]] = {}
    for path in paths:
        parts = [*path.relative_to(folder).parts[:-1], stem_of(path)]
        matches = [SENSORS.search(part) for part in parts]
        rest = "/".join(
            part if match is None else part.replace(match[0], "", 1)
            for part, match in zip(parts, matches, strict=True)
        )
        sensor = next((match[0].strip(" _-") for match in reversed(matches) if match), "")
        same = groups.setdefault(rest, {})
        same[sensor if sensor not in same else "/".join(parts)] = path
    sources = []
    for rest, same in groups.items():
        if len(same) > 1 and "" not in same:
            name = "/".join(part.strip(" _-") for part in Path(rest).parts).strip("/")
            sources.append(RecordingFiles(name or "recording", tuple(same.items())))
        else:
            for path in same.values():
                name = (path.relative_to(folder).parent / stem_of(path)).as_posix()
                sources.append(RecordingFiles(name, (("", path),)))
    with_sensors = {
        path.parent for same in groups.values() if len(same) > 1 for path in same.values()
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
        or not _has_samples(path)
    }
    if len(others) == len(sources):
        return sorted(sources)
    beside = tuple(sorted(set(others.values())))
    return sorted(s._replace(beside=beside) for s in sources if s.name not in others)


def _has_samples(path: Path) -> bool:
    """Return False if no channel of a text with a header has a number in its first rows."""
    if path.suffix == PARQUET or not form_of(path).has_header:
        return True
    header, rows = header_of(path), first_rows(path)
    channels = [i for i, role in enumerate(by_name(header, {})[0].values()) if role.role == CHANNEL]
    return not rows or any(is_number(row[i]) for row in rows for i in channels if i < len(row))


def _tables_in(folder: Path) -> list[Path]:
    """Return the paths of the tables in a folder and in the folders in it."""
    paths = recordings_in(folder)
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
        if not inner.name.startswith(".") and inner.name.lower() != "meta":
            paths += _tables_in(inner)
    return paths
