"""The private tensors of simulated devices, in memory-mapped files that all workers share.

One file holds one tensor of every device, row by row. Files are sparse: a row that no device has
written takes no space, and pages that are not in use leave memory. A column (one entry per training
example) has as many rows as the fleet has training examples.

Every row exists twice, and a round writes into the older copy. So a round that is repeated after an
interruption reads the same values as before.
"""

import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from wire.arrays import names
from wire.arrays.tensors import Array, Tensors

SIGNS = ".rounds"


@dataclass
class TravellingStore:
    """The private tensors of one device at a time, which travel with its plan and its result."""

    before: Tensors = field(default_factory=dict)
    after: Tensors | None = None
    """Tensors that were put; None if there were none."""

    def get(self, device_id: str, number: int) -> Tensors:
        return dict(self.before)

    def put(self, device_id: str, number: int, tensors: Tensors) -> None:
        self.after = tensors


@dataclass
class _File:
    rows: Array
    """Two copies of the rows (2, devices or examples, \\*shape)."""
    rounds: Array
    """Round that wrote each copy (devices, 2) int32, 0 if none did.

    It is negative if the round took the tensor away.
    """


class MappedStore:
    """A folder of memory-mapped files, a temporary one if none is given.

    Processes see each other's writes. Only one process at a time works on a device.
    """

    def __init__(
        self, folder: Path | None, device_ids: Sequence[str], num_train: Iterable[int]
    ) -> None:
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="shoal-")
            folder = Path(self._temporary.name)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._index = {device_id: i for i, device_id in enumerate(device_ids)}
        self._first = np.concatenate([[0], np.cumsum(np.fromiter(num_train, np.int64))])
        self._open: dict[str, _File] = {}
        self._listed: tuple[int, list[str]] = (-1, [])

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for another process, which opens the files itself."""
        return vars(self) | {"_temporary": None, "_open": {}}

    def get(self, device_id: str, number: int) -> Tensors:
        """Return a copy of a device's tensors before the round of this number; empty at first."""
        at = self._index[device_id]
        tensors: Tensors = {}
        for name in self._names(number):
            file, key = self._file(name), _parse(name)[0]
            copy = _newest(file.rounds[at], number)
            if file.rounds[at, copy] > 0 and file.rounds[at, copy] < number:
                tensors[key] = np.array(file.rows[copy][self._rows(key, at)])
        return tensors

    def put(self, device_id: str, number: int, tensors: Tensors) -> None:
        """Replace a device's tensors by these after the round of this number."""
        at = self._index[device_id]
        written = {_name(key, value): value for key, value in tensors.items()}
        for name in sorted(written.keys() | set(self._names(number))):
            file = self._file(name)
            copy = 1 - _newest(file.rounds[at], number)
            if name in written:
                file.rows[copy][self._rows(_parse(name)[0], at)] = written[name]
                file.rounds[at, copy] = number
            elif file.rounds[at].any():
                file.rounds[at, copy] = -number

    def _rows(self, key: str, at: int) -> int | slice:
        return (
            slice(int(self._first[at]), int(self._first[at + 1]))
            if names.role_of(key) == names.COLUMN
            else at
        )

    def _names(self, number: int) -> list[str]:
        """Return the names of the files with rows that devices may have from before this round.

        They are listed once in a round, because rows that any process writes meanwhile do not count
        yet.
        """
        listed = self._listed
        if listed[0] != number:
            self._listed = listed = (
                number,
                sorted(file.name for file in self.folder.iterdir() if file.suffix != SIGNS),
            )
        return listed[1]

    def _file(self, name: str) -> _File:
        if name not in self._open:
            key, dtype, shape = _parse(name)
            count = int(self._first[-1]) if names.role_of(key) == names.COLUMN else len(self._index)
            rounds = _map(self.folder / f"{name}{SIGNS}", np.dtype(np.int32), (len(self._index), 2))
            self._open[name] = _File(_map(self.folder / name, dtype, (2, count, *shape)), rounds)
        return self._open[name]


PrivateStore = TravellingStore | MappedStore
"""Store of devices' tensors (``private/NAME``, ``column/NAME``, ``personal/ROLE/NAME``)."""


def _newest(rounds: Array, number: int) -> int:
    """Return the index of the copy with the values from before the round of this number."""
    before = np.where(np.abs(rounds) < number, np.abs(rounds), -1)
    return int(before.argmax())


def _name(key: str, value: Array) -> str:
    shape = value.shape[1:] if names.role_of(key) == names.COLUMN else value.shape
    return f"{quote(key, safe='')},{value.dtype.name},{'x'.join(map(str, shape))}"


def _parse(name: str) -> tuple[str, np.dtype[np.generic], tuple[int, ...]]:
    key, dtype, shape = name.split(",")
    return unquote(key), np.dtype(dtype), tuple(int(n) for n in shape.split("x") if n)


def _map(path: Path, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Array:
    """Map a file of this shape, and make it with zeros if it does not exist."""
    if not prod(shape):
        path.touch()
        return np.zeros(shape, dtype)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(handle, prod(shape) * dtype.itemsize)
    finally:
        os.close(handle)
    return np.memmap(path, dtype, "r+", shape=shape)
