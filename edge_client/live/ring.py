"""Samples on disk, in a ring of files with a quota in bytes and a retention in days.

A file is a sequence of records. A record is a header and the samples of some steps of all channels:

====== ========= =======================================================
offset type      content
====== ========= =======================================================
0      4 bytes   ``SHL1``
4      uint32    CRC-32 of what follows in the record
8      uint16    number of channels
10     uint16    1 if the record does not continue the one before
12     uint32    number of steps n
16     float64   Unix time of the first step, seconds
24     float64   steps per second
32     float32   n x channels values
====== ========= =======================================================

All numbers are little-endian. Samples are stored instead of windows, since windows overlap and
would store each sample twice, and since a later label changes which windows are for training.

A record is written by one call once it has enough steps; a process that is killed loses only what
is in memory. The file is synced every `SYNC_S` seconds; a loss of power loses what came since. A
partial record ends what is read of its file, and is cut off when the ring is opened for writing. No
record is larger than a file.
"""

import contextlib
import logging
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_client.data.recordings.resampling import Stretch
from host.files import make_folder, sync_folder
from wire.arrays.tensors import Array

log = logging.getLogger("shoal.edge")

HEADER = struct.Struct("<4sIHHIdd")
MAGIC = b"SHL1"
SUFFIX = ".samples"
SYNC_S = 60.0
FILES = 16
"""Number of files that share the quota; the oldest is removed first."""
MOST_STEPS = 2**20
"""Maximum number of steps in a record."""


@dataclass(frozen=True)
class Record:
    """Samples x (n, channels) from t0_s on."""

    t0_s: float
    rate_hz: float
    begins: bool
    x: Array

    @property
    def end_s(self) -> float:
        """Time of the step after the last one."""
        return self.t0_s + len(self.x) / self.rate_hz


def encode_record(stretch: Stretch, rate_hz: float) -> bytes:
    """Return a stretch as a record."""
    x = np.ascontiguousarray(stretch.x, "<f4")
    body = (
        HEADER.pack(MAGIC, 0, x.shape[1], int(stretch.begins), len(x), stretch.t0_s, rate_hz)[8:]
        + x.tobytes()
    )
    return MAGIC + struct.pack("<I", zlib.crc32(body)) + body


def read_records(data: bytes, at: int = 0) -> Iterator[tuple[Record, int]]:
    """Yield the records from this offset on, each with the offset of its end.

    The first partial record ends them.
    """
    while len(data) - at >= HEADER.size:
        magic, crc, channels, begins, count, t0_s, rate_hz = HEADER.unpack_from(data, at)
        end = at + HEADER.size + 4 * channels * count
        if (
            magic != MAGIC
            or not channels
            or count > MOST_STEPS
            or end > len(data)
            or zlib.crc32(data[at + 8 : end]) != crc
        ):
            return
        x = np.frombuffer(data, "<f4", channels * count, at + HEADER.size).reshape(count, channels)
        yield Record(t0_s, rate_hz, bool(begins), x), end
        at = end


def records_of(path: Path, at: int = 0) -> Iterator[tuple[Record, int]]:
    """Yield the records of a file from this offset on, each with the offset of its end.

    There are none if the file is gone.
    """
    with contextlib.suppress(OSError):
        with path.open("rb") as file:
            file.seek(at)
            data = file.read()
        for record, end in read_records(data):
            yield record, at + end


def ring_files(folder: Path) -> list[Path]:
    """Return the paths of a ring's files, the oldest first."""
    return sorted(folder.glob(f"*{SUFFIX}"))


class Ring:
    """Ring that one process writes.

    An open ring raises nothing. Samples that cannot be stored are counted in `num_lost` (steps) and
    logged once, and storing starts again when there is room.
    """

    def __init__(
        self,
        folder: Path,
        rate_hz: float,
        quota_bytes: int,
        retention_s: float,
        record_steps: int,
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        spared: Callable[[float, float], bool] = lambda _begin_s, _end_s: False,
    ) -> None:
        """Open the ring, or create it.

        Args:
            folder: folder of the ring.
            rate_hz: steps per second.
            quota_bytes: maximum size of all files.
            retention_s: maximum age of a file.
            record_steps: number of steps that make a record.
            wall: Unix time.
            clock: seconds since any fixed moment.
            spared: function that returns True if the samples between two times are worth more than
                others.

        Raises:
            OSError: the folder cannot be used.
        """
        make_folder(folder)
        self.folder, self._rate_hz, self._quota_bytes, self._retention_s = (
            folder,
            rate_hz,
            quota_bytes,
            retention_s,
        )
        self._record_steps, self._wall, self._clock, self._spared = (
            record_steps,
            wall,
            clock,
            spared,
        )
        self._file_bytes = max(4096, quota_bytes // FILES)
        self._held: list[Stretch] = []
        self._file = -1
        self._path: Path | None = None
        self._size = 0
        self._synced_s = self._begun_s = clock()
        self._is_dirty = self._is_full = self._has_gap = False
        self.num_lost = self.num_bytes = self.num_syncs = 0
        for path in ring_files(folder)[-1:]:
            self._continue(path)

    def append(self, stretch: Stretch) -> None:
        """Add a stretch; it is written once there is enough for a record."""
        if stretch.begins or self._has_gap:
            self._write()
        if self._has_gap:
            stretch, self._has_gap = Stretch(stretch.t0_s, stretch.x, True), False
        self._held.append(stretch)
        if sum(len(piece.x) for piece in self._held) >= self._record_steps:
            self._write()
        if self._clock() - self._synced_s >= SYNC_S:
            self.sync()

    def sync(self) -> None:
        """Write all samples in memory and sync them to the disk."""
        self._write()
        self._synced_s = self._clock()
        if self._is_dirty:
            try:
                os.fsync(self._file)
                self.num_syncs += 1
                self._is_dirty = False
            except OSError as error:
                self._say_full(error)
        self.clear_old()

    def close(self) -> None:
        """Sync everything to the disk and close the file."""
        self.sync()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def clear_old(self) -> None:
        """Remove the oldest files, as the quota and the retention demand.

        Above the quota, files that are not spared are removed first, unless the spared ones take
        more than half of the quota.
        """
        sizes, removable, old = dict[Path, int](), list[Path](), list[Path]()
        for path in ring_files(self.folder):
            sizes[path], changed_s = 0, 0.0
            with contextlib.suppress(OSError):
                status = path.stat()
                sizes[path], changed_s = status.st_size, status.st_mtime
            if path != self._path:
                is_old = self._wall() - changed_s > self._retention_s
                (old if is_old else removable).append(path)
        total = sum(sizes.values()) - sum(sizes[path] for path in old)
        while removable and total > self._quota_bytes - self._file_bytes:
            plain = [path for path in removable if not self._spared(*span(path))]
            spared_bytes = sum(sizes[path] for path in removable if path not in plain)
            first = plain[0] if plain and spared_bytes <= self._quota_bytes // 2 else removable[0]
            removable.remove(first)
            old.append(first)
            total -= sizes[first]
        for path in old:
            with contextlib.suppress(OSError):
                path.unlink()

    def _write(self) -> None:
        if not self._held:
            return
        first = self._held[0]
        whole = Stretch(first.t0_s, np.concatenate([piece.x for piece in self._held]), first.begins)
        self._held = []
        most = max(1, min(MOST_STEPS, (self._file_bytes - HEADER.size) // (4 * whole.x.shape[1])))
        for start in range(0, len(whole.x), most):
            part = Stretch(
                whole.t0_s + start / self._rate_hz,
                whole.x[start : start + most],
                whole.begins and not start,
            )
            if not self._write_record(encode_record(part, self._rate_hz)):
                self.num_lost, self._has_gap = self.num_lost + len(whole.x) - start, True
                self.clear_old()
                return

    def _write_record(self, payload: bytes) -> bool:
        try:
            if (
                self._file < 0
                or self._size + len(payload) > self._file_bytes
                or self._clock() - self._begun_s > self._retention_s / FILES
            ):
                self._begin_file()
            written = os.write(self._file, payload)
            if written < len(payload):
                raise OSError(28, os.strerror(28))
        except OSError as error:
            self._say_full(error)
            if self._file >= 0:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, self._size)
            return False
        if self._is_full:
            log.info("Samples are stored again: lost=%d", self.num_lost)
        self._size, self._is_dirty, self._is_full = self._size + len(payload), True, False
        self.num_bytes += len(payload)
        return True

    def _begin_file(self) -> None:
        last = int(self._path.stem) if self._path else 0
        if self._file >= 0:
            os.fsync(self._file)
            os.close(self._file)
            self._file = -1
        path = self.folder / f"{last + 1:010d}{SUFFIX}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o640)
        self._path, self._size, self._begun_s = path, 0, self._clock()
        sync_folder(self.folder)
        self.clear_old()

    def _continue(self, path: Path) -> None:
        """Continue a file after its last complete record."""
        data = path.read_bytes()
        whole = max((end for _, end in read_records(data)), default=0)
        self._file, self._path, self._size = os.open(path, os.O_WRONLY | os.O_APPEND), path, whole
        if whole < len(data):
            log.warning(
                "Incomplete record at the end of a file, cut off: file=%s bytes=%d",
                path,
                len(data) - whole,
            )
            os.ftruncate(self._file, whole)
        self._has_gap = True

    def _say_full(self, error: OSError) -> None:
        if not self._is_full:
            log.error("Samples cannot be stored and are lost: %s", error.strerror or error)
        self._is_full = True


def span(path: Path) -> tuple[float, float]:
    """Return the start and end of the samples in a file, (0, 0) if there are none."""
    begin_s, end_s = np.inf, -np.inf
    for record, _ in records_of(path):
        begin_s, end_s = min(begin_s, record.t0_s), max(end_s, record.end_s)
    return (begin_s, end_s) if begin_s < end_s else (0.0, 0.0)
