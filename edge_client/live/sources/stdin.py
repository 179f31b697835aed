"""Samples from standard input: a line of JSON each, as `edge_client.live.readings` reads payloads."""

import logging
import os
import select
import time
from collections.abc import Callable

import msgspec

from edge_client.live.readings import Readings
from edge_client.live.samples import Samples
from wire.errors import DataError, printable

log = logging.getLogger("shoal.edge")

LINE_BYTES = 2**20
"""A longer line is not read."""
READ_BYTES = 2**18


class StdinSource:
    """Reads lines from a file descriptor. A line that is no JSON is passed over."""

    def __init__(self, readings: Readings, file: int = 0, wall: Callable[[], float] = time.time) -> None:
        self._readings, self._file, self._wall = readings, file, wall
        self._rest = b""
        self._is_over = False
        self.num_ignored = 0

    @property
    def is_over(self) -> bool:
        return self._is_over

    def read(self, timeout_s: float) -> list[Samples]:
        if self._is_over or not select.select([self._file], [], [], timeout_s)[0]:
            return []
        data = os.read(self._file, READ_BYTES)
        self._is_over = not data
        *lines, self._rest = (self._rest + data).split(b"\n") if data else (self._rest, b"")
        now_s = self._wall()
        for line in lines:
            if line.strip():
                self._add(line, now_s)
        if len(self._rest) > LINE_BYTES:
            self._rest = b""
            self._ignore(f"a line of over {LINE_BYTES} bytes")
        return self._readings.take()

    def close(self) -> None:
        self._is_over = True

    def _add(self, line: bytes, now_s: float) -> None:
        try:
            if not self._readings.add(msgspec.json.decode(line), now_s):
                self._ignore(f"no channel in {line[:100]!r}")
        except (msgspec.MsgspecError, ValueError, RecursionError, DataError) as error:
            self._ignore(f"{line[:100]!r}: {error}")

    def _ignore(self, what: str) -> None:
        self.num_ignored += 1
        if self.num_ignored in (1, 10, 100, 1000) or self.num_ignored % 10_000 == 0:
            log.warning("a line is passed over times=%d: %s", self.num_ignored, printable(what))
