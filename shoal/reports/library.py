"""The runs and comparisons of a folder, as `shoal simulate`, `shoal compare` and `shoal demo` left
them."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from aggregator.core.summary import Summary

MOST = 2000
"""Runs that are listed, at most: the latest."""
DEEPEST = 4
"""Folders below the one that is looked through."""
LARGEST = 64 * 2**20
"""Bytes of a file that is read, at most."""
LEFT_OUT = {"models", "bundle", "devices", "aggregator", "node_modules"}
"""Folders within a run's own that hold no other run."""


@dataclass(frozen=True)
class Entry:
    """A folder with results."""

    name: str
    """Its path below the folder that was looked through; a dot for that folder itself."""
    folder: Path
    at_s: float
    """When it was written, in Unix seconds."""
    summary: Summary | None = None
    """Of a run; None of a comparison, and where it cannot be read."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Of a comparison, a row for each algorithm; of a grid those over all cells."""
    problem: str = ""
    """Why it cannot be read; empty where it can be."""

    @property
    def has_report(self) -> bool:
        """Whether there is a page of it."""
        return (self.folder / "report.html").is_file()


class Library:
    """Looks through a folder, and reads again only what has changed."""

    def __init__(self, root: Path) -> None:
        self.root, self._read = root, dict[Path, tuple[tuple[int, int], Entry]]()

    def entries(self) -> dict[str, Entry]:
        """By name, what is there now, the latest first. Links to other folders are not followed."""
        found: list[tuple[int, Path]] = []
        for folder, folders, files in os.walk(self.root):
            here = Path(folder)
            depth = len(here.relative_to(self.root).parts)
            kept = [
                name
                for name in sorted(folders)
                if not name.startswith(".") and name not in LEFT_OUT
            ]
            folders[:] = kept if depth < DEEPEST else []
            for name in ("summary.json", "compare.json"):
                if name in files and (file := here / name).is_file() and not file.is_symlink():
                    found.append((file.stat().st_mtime_ns, file))
        latest = sorted(found, key=lambda one: (-one[0], one[1]))[:MOST]
        entries = [self._entry(file) for _, file in latest]
        self._read = {file: self._read[file] for _, file in latest if file in self._read}
        return {entry.name: entry for entry in entries}

    def _entry(self, file: Path) -> Entry:
        stat = file.stat()
        stamp = stat.st_mtime_ns, stat.st_size
        if (held := self._read.get(file)) is not None and held[0] == stamp:
            return held[1]
        entry = read_entry(self.root, file, stat.st_mtime, stat.st_size)
        self._read[file] = stamp, entry
        return entry


def read_entry(root: Path, file: Path, at_s: float, size: int) -> Entry:
    """A run or a comparison by its file; one that cannot be read says why."""
    name, folder = str(file.parent.relative_to(root)), file.parent
    if size > LARGEST:
        return Entry(
            name,
            folder,
            at_s,
            problem=f"{file.name}: {size:,} bytes, more than the {LARGEST:,} that are read",
        )
    try:
        if file.name == "summary.json":
            return Entry(name, folder, at_s, msgspec.json.decode(file.read_bytes(), type=Summary))
        held = json.loads(file.read_text())
        rows = held["overall"] if isinstance(held, dict) else held
        return Entry(
            name,
            folder,
            at_s,
            rows=[{"algorithm": str(r["algorithm"]), "mean": r["accuracy"]["mean"]} for r in rows],
        )
    except OSError as error:
        return Entry(name, folder, at_s, problem=f"{file.name}: {error.strerror}")
    except (ValueError, TypeError, KeyError) as error:
        what = (
            "a summary that `shoal simulate` wrote"
            if file.name == "summary.json"
            else "a table that `shoal compare` wrote"
        )
        return Entry(
            name,
            folder,
            at_s,
            problem=f"{file.name}: expected {what}: {type(error).__name__} {error}",
        )
