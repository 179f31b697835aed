"""Samples from files in a folder: ``*.csv`` with a header, ``*.jsonl`` and ``*.json``.

Each line of a JSON file is a payload. A file is read once, after it has not changed for
`SETTLED_S`; files that were read are remembered by name, size and time of change. If samples have
no time stamp, or one that counts from an unknown start, the last sample gets the time of the file's
last change.

A user who may write into the folder may not be permitted to read what this process can. So links
are not followed, only regular files are opened, and the log gets the names of files and the numbers
of lines, never their content.
"""

import csv
import heapq
import logging
import math
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from edge_client.data.recordings.resampling import Samples
from edge_client.live.sources.readings import FIRST_S, MOST_BYTES, TIMES, Readings
from edge_client.live.sources.tally import Tally
from host.files import open_regular, write_atomically
from wire.errors import ConfigError, DataError, printable

log = logging.getLogger("shoal.edge")

SETTLED_S = 2.0
LOOK_S = 1.0
"""Interval between two looks at the folder (seconds), at least `REST` times a look's duration."""
REST = 9
AT_ONCE = 4096
"""Number of lines that become samples at once."""
MOST_FILES = 1000
"""Maximum number of files of a look, the oldest."""
MOST_FILE_BYTES = 2**31
"""Size of the largest file that is read."""
MOST_COLUMNS = 4096
ENDINGS = (".csv", ".jsonl", ".json")


@dataclass(frozen=True, order=True)
class _Found:
    """File that was not read before; `mark` is its entry in the list of files that were read."""

    changed_s: float
    path: Path
    mark: str
    is_regular: bool
    num_bytes: int


class FolderSource:
    """Watcher of a folder. `done` is the path of the list of files that were read."""

    is_over = False

    def __init__(
        self,
        folder: Path,
        new_readings: Callable[[], Readings],
        done: Path,
        rate_hz: float,
        *,
        settled_s: float = SETTLED_S,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Read the list of files that were read before.

        Args:
            folder: folder to watch.
            new_readings: function that returns the collector of a file's samples.
            done: path of the list of files that were read.
            rate_hz: rate of samples without a time stamp.
            settled_s: time without a change after which a file is read.
            wall: Unix time.

        Raises:
            ConfigError: there is no such folder.
        """
        if not folder.is_dir():
            raise ConfigError(f"source folder {folder}: there is no such folder")
        self._folder, self._new_readings, self._rate_hz = folder, new_readings, rate_hz
        self._done_path, self._settled_s, self._wall = done, settled_s, wall
        self._done = (
            set(done.read_text("utf-8", "replace").split("\n")) if done.exists() else set[str]()
        )
        self._work: Iterator[list[Samples]] = iter(())
        self._done.discard("")
        self._look_at_s = self._look_took_s = 0.0
        self.ignored = Tally(f"a file or line in {folder}")

    def read(self, timeout_s: float) -> list[Samples]:
        if (samples := next(self._work, None)) is not None:
            return samples
        if time.monotonic() >= self._look_at_s:
            self._work = self._read_new()
            if (samples := next(self._work, None)) is not None:
                return samples
            self._look_at_s = time.monotonic() + max(
                min(LOOK_S, timeout_s), REST * self._look_took_s
            )
        time.sleep(min(timeout_s, max(0.0, self._look_at_s - time.monotonic())))
        return []

    def close(self) -> None:
        self._work = iter(())

    def _read_new(self) -> Iterator[list[Samples]]:
        for new_file in self._look():
            readings = self._new_readings()
            try:
                yield from self._read_file(new_file, readings)
            except (OSError, DataError, ValueError, RecursionError, csv.Error) as error:
                self.ignored.add(
                    f"{new_file.path.name}: "
                    f"{(isinstance(error, OSError) and error.strerror) or error}"
                )
            except Exception as error:
                self.ignored.add(error)
            yield readings.take()
            self._done.add(new_file.mark)
            try:
                with self._done_path.open("a", encoding="utf-8") as file:
                    file.write(f"\n{new_file.mark}")
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                log.error(
                    "List of read files not stored, files are read again after a restart: "
                    "file=%s: %s",
                    self._done_path,
                    error.strerror,
                )

    def _look(self) -> list[_Found]:
        """Return the new files, the oldest first, and forget the marks of files that are gone."""
        began_s, marks = time.monotonic(), set[str]()
        try:
            with os.scandir(self._folder) as entries:
                new_files = heapq.nsmallest(MOST_FILES, self._new(entries, marks))
        except OSError as error:
            self.ignored.add(f"{self._folder}: {error.strerror}")
            return []
        if len(marks) < len(self._done):
            try:
                write_atomically(self._done_path, "\n".join(sorted(marks)).encode())
                self._done = marks
            except OSError as error:
                log.error(
                    "List of read files not stored: file=%s: %s", self._done_path, error.strerror
                )
        self._look_took_s = time.monotonic() - began_s
        return new_files

    def _new(self, entries: Iterator[os.DirEntry[str]], still: set[str]) -> Iterator[_Found]:
        for entry in entries:
            if entry.name.startswith(".") or not entry.name.lower().endswith(ENDINGS):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if self._wall() - status.st_mtime < self._settled_s:
                continue
            mark = f"{status.st_mtime_ns} {status.st_size} {printable(entry.name)}"
            if mark in self._done:
                still.add(mark)
            else:
                yield _Found(
                    status.st_mtime,
                    Path(entry.path),
                    mark,
                    stat.S_ISREG(status.st_mode),
                    status.st_size,
                )

    def _read_file(self, found: _Found, readings: Readings) -> Iterator[list[Samples]]:
        """Yield the samples of a file in parts.

        The parts are empty while the kind of its times is determined.
        """
        if not found.is_regular:
            raise DataError("it is a link, a pipe or the like, not a regular file")
        if found.num_bytes > MOST_FILE_BYTES:
            raise DataError(f"it has {found.num_bytes} bytes, at most {MOST_FILE_BYTES} are read")
        clock = _FileClock(found.changed_s, self._rate_hz)
        with open_regular(found.path) as file:
            for count, row in enumerate(self._rows(found.path, file), start=1):
                if not clock.needs(row):
                    break
                if count % AT_ONCE == 0:
                    yield []
            file.seek(0)
            for count, row in enumerate(self._rows(found.path, file), start=1):
                readings.add(clock.timed(row, count), found.changed_s)
                if len(readings) >= AT_ONCE or count % AT_ONCE == 0:
                    yield readings.take()

    def _rows(self, path: Path, file: BinaryIO) -> Iterator[object]:
        lines = self._lines(path, file)
        if path.suffix.lower() == ".csv":
            rows = csv.DictReader(line.decode(errors="replace") for _, line in lines)
            if len(rows.fieldnames or ()) > MOST_COLUMNS:
                raise DataError(
                    f"it has {len(rows.fieldnames or ())} columns, at most {MOST_COLUMNS} are read"
                )
            yield from rows
            return
        for number, line in lines:
            if line.strip():
                try:
                    yield msgspec.json.decode(line)
                except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                    self.ignored.add(f"{path.name}, line {number}: {error}")

    def _lines(self, path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
        """Yield the lines with their numbers, except those that are longer than `MOST_BYTES`."""
        number, is_rest = 1, False
        while line := file.readline(MOST_BYTES + 1):
            is_whole = line.endswith(b"\n") or len(line) <= MOST_BYTES
            if not is_whole and not is_rest:
                self.ignored.add(f"{path.name}, line {number}: it has over {MOST_BYTES} bytes")
            elif is_whole and not is_rest:
                yield number, line
            is_rest = not is_whole
            number += is_whole


@dataclass
class _FileClock:
    """Meaning of the times in a file: absolute, from a start of their own, or missing."""

    changed_s: float
    rate_hz: float
    total: int = 0
    last_s: float = math.nan
    is_timed: bool = False

    def needs(self, row: object) -> bool:
        """Read the next row; return True if further rows are needed to decide."""
        at_s = _time_of(row) if isinstance(row, dict) else math.inf
        self.total += 1
        if self.total == 1:
            self.is_timed = not isinstance(row, dict) or _time_field(row) != ""
        if not self.is_timed:
            return True
        if not isinstance(row, dict) or (self.total == 1 and not at_s < FIRST_S):
            self.last_s = math.inf
            return False
        self.last_s = at_s if math.isfinite(at_s) else self.last_s
        return True

    def timed(self, row: object, count: int) -> object:
        """Return the row of this number, from 1 on, with its absolute time."""
        if not isinstance(row, dict):
            return row
        if not self.is_timed:
            return {**row, "t": self.changed_s - (self.total - count) / self.rate_hz}
        if self.last_s < FIRST_S:
            return {**row, _time_field(row): self.changed_s - self.last_s + _time_of(row)}
        return row


def _time_field(row: dict[str, object]) -> str:
    return next((key for key in TIMES if key in row and row[key] not in (None, "")), "")


def _time_of(row: dict[str, object]) -> float:
    try:
        return float(str(row.get(_time_field(row), "nan")))
    except ValueError:  # text in ISO 8601
        return math.inf
