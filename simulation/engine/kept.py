"""What simulated devices keep from round to round, in memory-mapped files that all workers share.

One file holds one tensor of every device, row by row. Files are sparse: a row that no device has written takes no space, and pages that
are not in use leave memory. A column (one entry per training example) has as many rows as the fleet has training examples.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, unquote

import numpy as np

from wire.tensors import Array, Tensors

COLUMN = "column/"


class Kept(Protocol):
    """What devices keep."""

    def get(self, device_id: str) -> Tensors:
        """A copy of what a device keeps (``private/NAME``, ``column/NAME``, ``kept/ROLE/NAME``); empty at first."""

    def put(self, device_id: str, tensors: Tensors) -> None:
        """Keep these tensors in place of what the device kept."""


@dataclass
class _File:
    rows: Array
    """(devices or examples, \\*shape)"""
    written: Array
    """(devices,) bool: whether the device's rows are there."""


class Arena:
    """A folder of such files. Processes that open the same folder see each other's writes; a device is worked on by one at a time."""

    def __init__(self, folder: Path, device_ids: Sequence[str], num_train: Iterable[int]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._index = {device_id: i for i, device_id in enumerate(device_ids)}
        self._first = np.concatenate([[0], np.cumsum(np.fromiter(num_train, np.int64))])
        self._open: dict[str, _File] = {}

    def get(self, device_id: str) -> Tensors:
        at = self._index[device_id]
        found: Tensors = {}
        for name in self._names():
            key, file = _parse(name)[0], self._file(name)
            if file.written[at]:
                found[key] = np.array(file.rows[self._rows(key, at)])
        return found

    def put(self, device_id: str, tensors: Tensors) -> None:
        at = self._index[device_id]
        names = {_name(key, value) for key, value in tensors.items()}
        for gone in set(self._names()) - names:
            self._file(gone).written[at] = False
        for key, value in tensors.items():
            file = self._file(_name(key, value))
            file.rows[self._rows(key, at)] = value
            file.written[at] = True

    def _rows(self, key: str, at: int) -> int | slice:
        return slice(int(self._first[at]), int(self._first[at + 1])) if key.startswith(COLUMN) else at

    def _names(self) -> list[str]:
        return sorted(entry.name for entry in os.scandir(self.folder) if not entry.name.endswith(".written"))

    def _file(self, name: str) -> _File:
        if name not in self._open:
            key, dtype, shape = _parse(name)
            count = int(self._first[-1]) if key.startswith(COLUMN) else len(self._index)
            written = _map(self.folder / f"{name}.written", np.dtype(bool), (len(self._index),))
            self._open[name] = _File(_map(self.folder / name, dtype, (count, *shape)), written)
        return self._open[name]


def _name(key: str, value: Array) -> str:
    shape = value.shape[1:] if key.startswith(COLUMN) else value.shape
    return f"{quote(key, safe='')},{value.dtype.name},{'x'.join(map(str, shape))}"


def _parse(name: str) -> tuple[str, np.dtype[np.generic], tuple[int, ...]]:
    key, dtype, shape = name.split(",")
    return unquote(key), np.dtype(dtype), tuple(int(n) for n in shape.split("x") if n)


def _map(path: Path, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Array:
    """A file of zeros of this shape, or what it holds; whoever comes first makes it."""
    size = max(1, prod(shape) * dtype.itemsize)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(handle, size)
    finally:
        os.close(handle)
    return np.memmap(path, dtype, "r+", shape=shape) if prod(shape) else np.zeros(shape, dtype)
