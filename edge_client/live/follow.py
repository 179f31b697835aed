"""Windows of the live stream in order, cut from stretches or from another process's ring."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from edge_client.data.recordings.resampling import Stretch
from edge_client.live.ring import read_records, records_of, ring_files
from wire.arrays.tensors import Array

LOOK_S = 0.1


class Cutter:
    """Cutter of windows of `length` steps, one every `stride` steps; no window spans a gap."""

    def __init__(self, length: int, stride: int, rate_hz: float, places: Sequence[int]) -> None:
        """Start without samples.

        Args:
            length: number of steps of a window.
            stride: number of steps between the starts of two windows.
            rate_hz: steps per second.
            places: indexes of the window's channels in a stretch, in the window's order.
        """
        self._length, self._stride, self._rate_hz, self._places = (
            length,
            stride,
            rate_hz,
            list(places),
        )
        self._x = np.zeros((0, len(self._places)), np.float32)
        self._t0_s = 0.0
        self._skip = 0

    def cut(self, stretch: Stretch) -> Iterator[tuple[float, Array]]:
        """Yield the windows that a stretch completes.

        Each window is the Unix time of its first step and x (channels, time).
        """
        if stretch.begins:
            self._x, self._t0_s, self._skip = self._x[:0], stretch.t0_s, 0
        elif not len(self._x) and not self._skip:
            self._t0_s = stretch.t0_s
        self._x = np.concatenate([self._x, stretch.x[:, self._places]])
        self._advance()
        while not self._skip and len(self._x) >= self._length:
            yield self._t0_s, np.ascontiguousarray(self._x[: self._length].T)
            self._skip = self._stride
            self._advance()

    def _advance(self) -> None:
        gone = min(self._skip, len(self._x))
        self._x, self._skip, self._t0_s = (
            self._x[gone:],
            self._skip - gone,
            self._t0_s + gone / self._rate_hz,
        )


def follow_ring(folder: Path, rate_hz: float, stop: Callable[[], bool]) -> Iterator[Stretch]:
    """Yield the samples recorded into a ring from now on, as soon as they are written."""
    paths = ring_files(folder)
    path = paths[-1] if paths else None
    offset = max((end for _, end in read_records(path.read_bytes())), default=0) if path else 0
    is_first = True
    while not stop():
        later = [
            p for p in ring_files(folder) if path is None or p.name > path.name
        ]  # listed before the read: a file that has a successor is complete
        has_record = False
        if path is not None:
            for record, end in records_of(path, offset):
                has_record, offset = True, end
                yield Stretch(
                    record.t0_s, record.x, record.begins or is_first or record.rate_hz != rate_hz
                )
                is_first = False
        if not has_record and later:
            path, offset = later[0], 0
        elif not has_record:
            time.sleep(LOOK_S)
