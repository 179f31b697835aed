"""Recordings that come into a folder: ``*.csv`` with a header, ``*.jsonl`` and ``*.json`` with a payload a line.

A file is read once, when it has not changed for `SETTLED_S`; which files were read is remembered by name, size and time of change. Samples
without a time stamp, or with one that counts from an unknown start, end when the file was last changed.
"""

import csv
import logging
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from edge_client.live.readings import FIRST_S, TIMES, Readings
from edge_client.live.samples import Samples
from host.files import write_atomically
from wire.errors import ConfigError, DataError, printable

log = logging.getLogger("shoal.edge")

SETTLED_S = 2.0
LOOK_S = 1.0
"""Seconds between two looks at the folder."""
AT_ONCE = 4096
"""Lines that become samples at once."""
ENDINGS = (".csv", ".jsonl", ".json")


class FolderSource:
    """Watches a folder. `done`: the file in which it remembers what was read."""

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
        """`rate_hz`: of samples without a time stamp.

        Raises:
            ConfigError: there is no such folder.
        """
        if not folder.is_dir():
            raise ConfigError(f"source folder {folder}: there is no such folder")
        self._folder, self._new_readings, self._rate_hz = folder, new_readings, rate_hz
        self._done_path, self._settled_s, self._wall = done, settled_s, wall
        self._done = set(done.read_text().splitlines()) if done.exists() else set[str]()
        self._work: Iterator[list[Samples]] = iter(())
        self._look_at_s = 0.0
        self.num_ignored = 0

    @property
    def is_over(self) -> bool:
        return False

    def read(self, timeout_s: float) -> list[Samples]:
        if (samples := next(self._work, None)) is not None:
            return samples
        if time.monotonic() >= self._look_at_s:
            self._work = self._read_new()
            if (samples := next(self._work, None)) is not None:
                return samples
            self._look_at_s = time.monotonic() + min(LOOK_S, timeout_s)
        time.sleep(min(timeout_s, max(0.0, self._look_at_s - time.monotonic())))
        return []

    def close(self) -> None:
        self._work = iter(())

    def _read_new(self) -> Iterator[list[Samples]]:
        found: list[tuple[float, Path, str]] = []
        for path in self._folder.iterdir():
            if path.suffix.lower() not in ENDINGS or path.name.startswith("."):
                continue
            try:
                status = path.stat()
            except OSError:
                continue
            if self._wall() - status.st_mtime >= self._settled_s:
                found.append((status.st_mtime, path, f"{status.st_mtime_ns} {status.st_size} {path.name}"))
        present = {mark for _, _, mark in found}
        for changed_s, path, mark in sorted(found):
            if mark in self._done:
                continue
            readings = self._new_readings()
            try:
                for payload, now_s, count in self._payloads(path, changed_s):
                    readings.add(payload, now_s)
                    if count % AT_ONCE == 0:
                        yield readings.take()
            except (OSError, DataError, ValueError, csv.Error) as error:
                self._ignore(f"{path}: {error}")
            yield readings.take()
            self._done.add(mark)
            self._done = {m for m in self._done if m in present}
            try:
                write_atomically(self._done_path, "\n".join(sorted(self._done)).encode())
            except OSError as error:
                log.error("%s: %s; after a restart files are read again", self._done_path, error.strerror)

    def _payloads(self, path: Path, changed_s: float) -> Iterator[tuple[object, float, int]]:
        rows = self._csv(path) if path.suffix.lower() == ".csv" else self._lines(path)
        last_s, timed = self._last_time(path)
        total = 0
        if not timed:
            total = sum(1 for _ in (self._csv(path) if path.suffix.lower() == ".csv" else self._lines(path)))
        for count, row in enumerate(rows, start=1):
            if not timed and isinstance(row, dict):
                yield {**row, "t": changed_s - (total - count) / self._rate_hz}, changed_s, count
            elif timed and last_s < FIRST_S and isinstance(row, dict):
                yield {**row, _time_field(row): changed_s - last_s + _time_of(row)}, changed_s, count
            else:
                yield row, changed_s, count

    def _last_time(self, path: Path) -> tuple[float, bool]:
        """The last time stamp of a file as it stands there, and whether its first sample has one."""
        last, timed = math.nan, False
        for count, row in enumerate(self._csv(path) if path.suffix.lower() == ".csv" else self._lines(path)):
            if not isinstance(row, dict):
                return math.inf, True
            at = _time_of(row)
            if count == 0:
                timed = _time_field(row) != ""
                if not timed or not at < FIRST_S:
                    return math.inf, timed
            last = at if at == at else last
        return last, timed

    def _csv(self, path: Path) -> Iterator[dict[str, str]]:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            yield from csv.DictReader(file)

    def _lines(self, path: Path) -> Iterator[object]:
        with path.open("rb") as file:
            for line in file:
                if line.strip():
                    try:
                        yield msgspec.json.decode(line)
                    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                        self._ignore(f"{path}: {line[:100]!r}: {error}")

    def _ignore(self, what: str) -> None:
        self.num_ignored += 1
        if self.num_ignored < 10 or self.num_ignored % 1000 == 0:
            log.warning("passed over times=%d: %s", self.num_ignored, printable(what))


def _time_field(row: dict[str, object]) -> str:
    return next((key for key in TIMES if key in row and row[key] not in (None, "")), "")


def _time_of(row: dict[str, object]) -> float:
    try:
        return float(str(row.get(_time_field(row), "nan")))
    except ValueError:  # text in ISO 8601
        return math.inf
