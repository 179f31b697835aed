"""Words of ``shoal.toml`` that match nothing in the recordings."""

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from edge_client.data.recordings.folders import is_named
from edge_client.data.recordings.scanning import FolderScan
from edge_client.data.tables.parts import is_of_file
from edge_client.data.tables.text_form import text_of
from edge_client.data.tables.words import SETTINGS, is_pattern_of, nearest, place_in

_TABLES = (
    ("columns", "no recording has a column"),
    ("classes", "no sample has the label"),
    ("labels", "no recording has a name like"),
    ("recordings", "no recording has a name or a cell like"),
    ("names", "no file has a name like"),
    ("missing", "no cell is the number"),
)


def unmatched(scans: Sequence[FolderScan]) -> str:
    """Return an error that names a user's word which matches nothing in any of the recordings.

    It is "" if all words match something. A word counts for the devices whose settings have it.
    """
    alike: dict[int, list[FolderScan]] = {}
    for scan in scans:
        alike.setdefault(id(scan.settings), []).append(scan)
    groups = list(alike.values())
    for group in groups:
        settings = group[0].settings
        for table, text in _TABLES:
            words = getattr(settings, table)
            is_list = table == "names" and not isinstance(words, Mapping)
            if table == "missing":
                words = [f"{number:.15g}" for number in words]
            for word in () if is_list else words:
                if _matches(table, word, group):
                    continue
                others = [g for g in groups if word in getattr(g[0].settings, table)]
                if any(_matches(table, word, other) for other in others):
                    continue
                there = {each for g in others for scan in g for each in _words(table, scan)}
                return f"{_place(group[0], table, word)}: {text} {word!r}. {nearest(word, there)}"
        if settings.names and not any(s.needs_names for g in groups for s in g if s.settings.names):
            shown = ", ".join(map(repr, group[0].columns))
            return (
                f"{_place(group[0], 'names', 'names')}: names are for files without a header, or "
                f"with one of as many names, and all files have others, such as {shown}. Give "
                "columns roles by these names, or remove the line."
            )
    return ""


def _words(table: str, scan: FolderScan) -> Iterable[str]:
    """Return the words of a device's recordings that a user's words of a table may match."""
    if table == "columns":
        return scan.names
    if table == "classes":
        return scan.labels
    if table == "names":
        return {path.name for path in _files(scan)}
    if table == "missing":
        return scan.missing
    names = {source.name for source in scan.sources}
    return names | scan.places if table == "recordings" else names


def _files(scan: FolderScan) -> list[Path]:
    """Return the paths of the files of a device's recordings, and the names of those beside."""
    paths = (path for source in scan.sources for _, path in source.files)
    beside = {Path(name) for source in scan.sources for name in source.beside}
    return [*(path for path in paths if isinstance(path, Path)), *beside]


def _matches(table: str, word: str, scans: Sequence[FolderScan]) -> bool:
    if table == "columns":
        names = {name for scan in scans for name in scan.names}
        return word.lower() in map(str.lower, names) or is_pattern_of(word, names)
    if table in ("classes", "missing"):
        return any(word in _words(table, scan) for scan in scans)
    if table == "names":
        return any(is_of_file(word, path) for scan in scans for path in _files(scan))
    return any(
        any(is_named(word, source) for source in scan.sources)
        or (table == "recordings" and any(fnmatch.fnmatch(cell, word) for cell in scan.places))
        for scan in scans
    )


def _place(scan: FolderScan, table: str, word: str) -> str:
    """Return the file and line of a user's word, or its setting if no file has it."""
    for folder in (scan.folder, scan.folder.parent):
        path = folder / SETTINGS
        if path.is_file() and word in text_of(path):
            return f"{place_in(path, word)}, {table}"
    return table
