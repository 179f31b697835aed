"""Audit log of a fleet in the service's folder: one line of JSON for each act of a person."""

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

log = logging.getLogger("shoal.aggregator")

AUDIT = "audit.log"
BLOCK = 2**16
MOST_BYTES = 2**24
"""Maximum number of bytes of the log that are read for one page."""


class Line(msgspec.Struct, frozen=True):
    """One line of the audit log."""

    at_s: float
    by: str
    what: str
    outcome: str
    text: str = ""


class Page(msgspec.Struct, frozen=True):
    """Lines of the audit log, latest first."""

    lines: tuple[Line, ...]
    before: int | None
    """Offset in the file (bytes) at which earlier lines end; None if there are none."""


def note(folder: Path, by: str, what: str, outcome: str, **details: str) -> None:
    """Append a line to the folder's audit log: Unix time (s), person, act and outcome.

    The line is on the disk when this returns. A log that cannot be written is reported in the
    service's own log instead of an error: an operator must be able to act on a full disk.
    """
    line = (
        json.dumps(
            {"at_s": round(time.time(), 3), "by": by, "what": what, "outcome": outcome, **details}
        )
        + "\n"
    )
    try:
        with (folder / AUDIT).open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        message = "Audit log not written: file=%s: %s: %s"
        log.error(message, folder / AUDIT, error.strerror, line.strip())


def read_back(folder: Path, before: int | None = None, words: str = "", most: int = 50) -> Page:
    """Return the latest lines of the log that contain all of `words`, ignoring case.

    `before`: end of the part of the file that is read (bytes), for the next page. `most`: maximum
    number of lines. Text that is not a line, such as one torn by a power cut, is skipped.

    Raises:
        OSError: the log cannot be read.
    """
    try:
        file = (folder / AUDIT).open("rb")
    except FileNotFoundError:
        return Page((), None)
    wanted, lines = words.casefold().split(), list[Line]()
    with file:
        size = file.seek(0, os.SEEK_END)
        end = size if before is None else min(before, size)
        reached = least = max(0, end - MOST_BYTES)
        for begin, raw in _lines_back(file, end, least):
            reached = begin
            text = raw.decode("utf-8", "replace").casefold()
            if all(word in text for word in wanted):
                with suppress(msgspec.DecodeError):
                    lines.append(msgspec.json.decode(raw, type=Line))
            if len(lines) == most:
                break
    return Page(tuple(lines), reached or None)


def _lines_back(file: BinaryIO, end: int, least: int) -> Iterator[tuple[int, bytes]]:
    """Yield the whole lines between two offsets with their offsets, last line first."""
    rest, at = b"", end
    while at > least:
        size = min(BLOCK, at - least)
        at -= size
        file.seek(at)
        block = file.read(size) + rest
        first = 0 if at == 0 else block.find(b"\n") + 1
        if at > 0 and first == 0:
            rest = block
            continue
        lines, rest = block[first:].splitlines(keepends=True), block[:first]
        begin = at + len(block)
        for line in reversed(lines):
            begin -= len(line)
            yield begin, line
