"""Samples from standard input, one line of JSON each.

`edge_client.live.sources.readings` reads the lines as payloads.
"""

import os
import select
import time
from collections.abc import Callable

import msgspec

from edge_client.data.recordings.resampling import Samples
from edge_client.live.sources.readings import MOST_BYTES, Readings
from edge_client.live.sources.tally import Tally
from wire.errors import DataError

READ_BYTES = 2**18


class StdinSource:
    """Reader of lines from a file descriptor.

    A line that is not JSON, or is longer than a payload may be, is skipped. The log gets its
    number, not its content.
    """

    def __init__(
        self, readings: Readings, file: int = 0, wall: Callable[[], float] = time.time
    ) -> None:
        self._readings, self._file, self._wall = readings, file, wall
        self._rest = b""
        self.is_over = self._is_too_long = False
        self.ignored, self._num_lines = Tally("a line of standard input"), 0

    def read(self, timeout_s: float) -> list[Samples]:
        if self.is_over or not select.select([self._file], [], [], timeout_s)[0]:
            return []
        data = os.read(self._file, READ_BYTES)
        self.is_over = not data
        *lines, self._rest = (self._rest + data).split(b"\n") if data else (self._rest, b"")
        now_s = self._wall()
        for line in lines:
            self._num_lines += 1
            if self._is_too_long or len(line) > MOST_BYTES:
                self.ignored.add(f"line {self._num_lines}: it has over {MOST_BYTES} bytes")
            elif line.strip():
                self._add(line, now_s)
            self._is_too_long = False
        if len(self._rest) > MOST_BYTES:
            self._rest, self._is_too_long = b"", True
        return self._readings.take()

    def close(self) -> None:
        self.is_over = True

    def _add(self, line: bytes, now_s: float) -> None:
        try:
            if not self._readings.add(msgspec.json.decode(line), now_s):
                self.ignored.add(f"line {self._num_lines}: it has no value of a channel")
        except (msgspec.MsgspecError, ValueError, RecursionError, DataError) as error:
            self.ignored.add(f"line {self._num_lines}: {error}")
        except Exception as error:
            self.ignored.add(error)
