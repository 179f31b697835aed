"""Recordings in a device's folder: their files, and a user's words in ``shoal.toml``."""

import re
import tomllib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec

from edge_client.data.roles import (
    RoleName,
)
from edge_client.data.tables import (
    TableSource,
    is_table,
    stem_of,
)
from edge_client.settings import LENGTH as LENGTH
from edge_client.settings import STRIDE as STRIDE
from wire.errors import ConfigError, DataError

CLASSES, SETTINGS = "classes.txt", "shoal.toml"
NO_DATA = frozenset(("metadata", "annotation", "annotations", "studymetadata", "readme"))
"""Names of files that programs write beside the samples."""
SENSORS = re.compile(
    r"(?:(?:linear|total|raw|absolute|watch|wrist|phone)[ _-]?)*[a-z]*(?:acc|gyr|magnet|gravity|"
    r"orient|barom|pressure|heart|light|rotation|acceleration|temperature|humidity)[a-z]*",
    re.IGNORECASE,
)
"""Name of a sensor in the name of a file that has this sensor alone."""


class FolderSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of ``shoal.toml``: a user's words about recordings, which go before any guess."""

    columns: dict[str, RoleName] = {}
    """Roles of columns by name."""
    names: tuple[str, ...] = ()
    """Names of the columns of text files without a header."""
    labels: dict[str, str] = {}
    """Classes of whole recordings, by a pattern of their names, such as ``walk*``."""
    rate: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Samples per second of all recordings, to which others are brought; 0: that of most."""
    window: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Number of samples of a window; 0: `LENGTH`."""
    stride: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Number of samples between the starts of two windows; 0: `STRIDE`."""
    time_unit: Literal["", "s", "ms", "us", "ns"] = ""
    """Unit of the time; "" if the column's name and its values say it."""


class RecordingFiles(NamedTuple):
    """One recording: its name, and its files by sensor; the sensor of a single file is ""."""

    name: str
    files: tuple[tuple[str, TableSource], ...]


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


def settings_in(folder: Path, others: FolderSettings | None = None) -> FolderSettings:
    """Return the settings of a folder's ``shoal.toml``; those of `others` that it does not set.

    Raises:
        ConfigError: the file cannot be read, or has a setting that cannot be.
    """
    others = others or FolderSettings()
    path = folder / SETTINGS
    if not path.exists():
        return others
    try:
        words = tomllib.loads(path.read_text("utf-8-sig"))
        return msgspec.convert(msgspec.to_builtins(others) | words, FolderSettings)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: {error}") from None


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
    sources = grouped(recordings_in(folder))
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
        if not inner.name.startswith(".") and inner.name.lower() != "meta":
            sources += [
                RecordingFiles(f"{inner.name}/{source.name}", source.files)
                for source in sources_in(inner)
            ]
    return sources


def grouped(paths: Sequence[Path]) -> list[RecordingFiles]:
    """Return files as recordings: those that differ only in the name of a sensor are one."""
    groups: dict[str, dict[str, Path]] = {}
    for path in paths:
        match = SENSORS.search(stem_of(path))
        rest = stem_of(path) if match is None else stem_of(path).replace(match[0], "", 1)
        groups.setdefault(rest, {})["" if match is None else match[0].strip(" _-")] = path
    sources = []
    for rest, files in groups.items():
        if len(files) > 1 and "" not in files:
            sources.append(RecordingFiles(rest.strip(" _-") or "recording", tuple(files.items())))
        else:
            sources += [RecordingFiles(stem_of(path), (("", path),)) for path in files.values()]
    return sorted(sources)
