"""Labels of time: intervals with a label, stored in a file of JSON lines.

A statement paints an interval with a label, or with none, over earlier statements. A statement
without an end lasts until the next one, and at most `LONGEST_S`: a forgotten button must not label
the night. No statement covers more than `MOST_S` or starts later than that from now. Beyond
`MOST_INTERVALS` intervals the oldest are forgotten.
"""

import bisect
import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from host.files import make_folder, write_atomically
from wire.arrays.tensors import Array
from wire.errors import DataError

log = logging.getLogger("shoal.edge")

FILE = "labels.jsonl"
LONGEST_S, MOST_S = 3600.0, 24 * 3600.0
MOST_INTERVALS = 20_000
LONGEST_LABEL = 100
"""Maximum number of characters of an unknown label in the log."""
STATED_BYTES = 2**16
"""Size of the longest statement that is read."""
MOST_BYTES = 2**20
"""Size above which `Labels.forget` rewrites the file even if no label is too old.

A file that is `OVERFULL` times as large is rewritten at once.
"""
OVERFULL = 8


class Statement(msgspec.Struct, frozen=True, rename={"begin_s": "from", "end_s": "to"}):
    """Label of the interval between two Unix times (seconds); None removes the label."""

    begin_s: float
    end_s: float
    label: str | None


class Timeline:
    """Labels of all times, as painted so far. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._begins: list[float] = [-np.inf]
        self._labels: list[str | None] = [None]

    def paint(self, statement: Statement) -> None:
        """Paint an interval."""
        begin_s, end_s = statement.begin_s, statement.end_s
        if not begin_s < end_s:
            return
        with self._lock:
            begins, labels = self._begins, self._labels
            after = self.at(end_s)
            low, high = bisect.bisect_left(begins, begin_s), bisect.bisect_right(begins, end_s)
            begins[low:high], labels[low:high] = [begin_s, end_s], [statement.label, after]
            for i in (low + 1, low):
                if 0 < i < len(labels) and labels[i] == labels[i - 1]:
                    del begins[i], labels[i]
            if len(begins) > 2 * MOST_INTERVALS:
                del begins[1 : -2 * MOST_INTERVALS + 1], labels[1 : -2 * MOST_INTERVALS + 1]

    def at(self, t: float) -> str | None:
        """Return the label at a time, or None."""
        with self._lock:
            return self._labels[bisect.bisect_right(self._begins, t) - 1]

    def covering(self, begins_s: Array, ends_s: Array, classes: Sequence[str]) -> Array:
        """Return the class number (n,) int64 of each window, -1 without a class.

        A window has a class if that label covers it completely.

        Args:
            begins_s: time (n,) of each window's first sample.
            ends_s: time (n,) of each window's last sample.
            classes: names of the classes.
        """
        numbers = {name: i for i, name in enumerate(classes)}
        with self._lock:
            begins, labels = np.array(self._begins), list(self._labels)
        of = np.array(
            [numbers.get(label, -1) if label is not None else -1 for label in labels], np.int64
        )
        first = np.searchsorted(begins, begins_s, "right") - 1
        last = np.searchsorted(begins, ends_s, "right") - 1
        return np.where(first == last, of[first], -1)

    def intervals(self, since_s: float) -> list[Statement]:
        """Return the labelled intervals that end after a time."""
        with self._lock:
            begins, labels = list(self._begins), list(self._labels)
        rows = zip(begins, [*begins[1:], np.inf], labels, strict=True)
        return [
            Statement(begin, end, label)
            for begin, end, label in rows
            if label is not None and end > since_s
        ]


class Labels:
    """Labels of a folder, in `timeline`. Any thread may call `say`.

    `wall`: Unix time.
    """

    def __init__(
        self, folder: Path, classes: Sequence[str], wall: Callable[[], float] = time.time
    ) -> None:
        """Read the labels of a folder, or create it.

        Raises:
            OSError: the folder cannot be read.
        """
        make_folder(folder)
        self._path, self.wall, self._lock = folder / FILE, wall, threading.Lock()
        self.classes = tuple(classes)
        self.timeline = Timeline()
        self._first_end_s = np.inf
        self._num_bytes = self._read()

    def say(
        self, label: str | None, begin_s: float, end_s: float | None = None, *, durable: bool = True
    ) -> None:
        """Label an interval; without an end it starts then and lasts until the next label.

        `durable`: True if the label has to be on the disk when this returns.

        Raises:
            DataError: there is no such class, or no such interval.
            OSError: the label cannot be stored.
        """
        if label is not None and label not in self.classes:
            raise DataError(
                f"No class {label[:LONGEST_LABEL]!r}. Known classes: {', '.join(self.classes)}."
            )
        end_s = begin_s + LONGEST_S if end_s is None else end_s
        if not (np.isfinite(begin_s) and np.isfinite(end_s) and begin_s < end_s):
            raise DataError(f"label {label!r}: to must be above from, got {begin_s} to {end_s}")
        if round(end_s - begin_s) > MOST_S or begin_s > self.wall() + MOST_S:
            raise DataError(
                f"label {label!r} must last at most {MOST_S:.0f} s and begin at most "
                f"{MOST_S:.0f} s from now, got {begin_s} to {end_s}"
            )
        statement = Statement(float(begin_s), float(end_s), label)
        with self._lock:
            self._append(statement, durable)
            self.timeline.paint(statement)
            if self._num_bytes > OVERFULL * MOST_BYTES:
                with contextlib.suppress(OSError):  # it is stored; the next one tries again
                    self._write_anew(-np.inf)

    def has_any(self, begin_s: float, end_s: float) -> bool:
        """Return True if there is a label between two times."""
        return any(interval.begin_s < end_s for interval in self.timeline.intervals(begin_s))

    def forget(self, before_s: float) -> None:
        """Remove labels that ended before this time, or at it, from the file.

        Nothing is written if there are none, unless the file is long.

        Raises:
            OSError: it cannot be written; the old file stays.
        """
        with self._lock:
            if self._first_end_s <= before_s or self._num_bytes > MOST_BYTES:
                self._write_anew(before_s)

    def _write_anew(self, before_s: float) -> None:
        intervals = self.timeline.intervals(before_s)
        payload = b"".join(msgspec.json.encode(s) + b"\n" for s in intervals)
        write_atomically(self._path, payload)
        self._num_bytes = len(payload)
        self._first_end_s = min((s.end_s for s in intervals), default=np.inf)

    def _append(self, statement: Statement, durable: bool) -> None:
        line = msgspec.json.encode(statement) + b"\n"
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        try:
            if os.write(file, line) < len(line):
                os.ftruncate(file, self._num_bytes)
                raise OSError(28, os.strerror(28))
            self._num_bytes += len(line)
            self._first_end_s = min(self._first_end_s, statement.end_s)
            if durable:
                os.fsync(file)
        finally:
            os.close(file)

    def _read(self) -> int:
        if not self._path.exists():
            return 0
        payload = self._path.read_bytes()
        for line in payload.splitlines():
            try:
                statement = msgspec.json.decode(line, type=Statement)
                self.timeline.paint(statement)
                self._first_end_s = min(self._first_end_s, statement.end_s)
            except (msgspec.MsgspecError, ValueError):
                log.warning("Line is not a label, skipped: file=%s line=%r", self._path, line[:100])
        if payload and not payload.endswith(
            b"\n"
        ):  # a partial line: the next one must not continue it
            with self._path.open("ab") as file:
                file.write(b"\n")
            return len(payload) + 1
        return len(payload)


def read_statement(payload: bytes, now_s: float, labels: Labels) -> None:
    """Store a label from a published payload.

    The payload is a label as plain text, which applies from now on (``none`` or nothing removes the
    label), or an object with ``label`` and, optionally, ``from`` and ``to`` in Unix seconds.

    Raises:
        DataError: it is neither, or there is no such class or interval.
        OSError: the label cannot be stored.
    """
    if len(payload) > STATED_BYTES:
        raise DataError(f"a label of {len(payload)} bytes: at most {STATED_BYTES} are read")
    text = payload.decode(errors="replace").strip()
    try:
        statement = json.loads(text) if text.startswith(("{", '"')) else text
    except (ValueError, RecursionError) as error:
        raise DataError(f"a label of {len(payload)} bytes: {error}") from None
    if isinstance(statement, str):
        statement = {"label": statement}
    label = statement.get("label") or None
    begin_s, end_s = statement.get("from", now_s), statement.get("to")
    if (
        not isinstance(begin_s, int | float)
        or not isinstance(end_s, int | float | None)
        or not isinstance(label, str | None)
    ):
        raise DataError(
            f"a label of {len(payload)} bytes: label must be a text, and from and to Unix seconds"
        )
    try:
        begin_s, end_s = float(begin_s), None if end_s is None else float(end_s)
    except OverflowError as error:
        raise DataError(f"a label of {len(payload)} bytes: {error}") from None
    labels.say(None if label == "none" and "none" not in labels.classes else label, begin_s, end_s)
