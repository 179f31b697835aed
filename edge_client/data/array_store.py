"""Arrays that may exceed memory: in temporary files, which are mapped into memory.

The files lie in the folder of temporary files (``TMPDIR``) and have no name, so each is gone with
the last array in it.
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from math import prod

import numpy as np

from wire.arrays.tensors import Array
from wire.errors import DataError

MOST_IN_MEMORY = 128 * 2**20
"""Number of bytes of a store's arrays from which others are in files."""
BLOCK = 16 * 2**20
"""Number of bytes of an array that are processed at once."""
SEGMENT = 256 * 2**20
"""Minimum size of a file in bytes."""


class ArrayStore:
    """Source of new arrays, in memory while they are few, then in files."""

    def __init__(self, in_memory: int | None = None) -> None:
        self._left = MOST_IN_MEMORY if in_memory is None else in_memory
        self._segment: mmap.mmap | None = None
        self._end = 0

    def empty(self, shape: Sequence[int], dtype: np.dtype | type) -> Array:
        """Return a new array whose values are arbitrary.

        Raises:
            DataError: the disk is full.
        """
        size = prod(shape) * np.dtype(dtype).itemsize
        if size <= self._left:
            self._left -= size
            return np.empty(shape, dtype)
        if self._segment is None or self._end + size > len(self._segment):
            self._segment, self._end = _mapped(max(size, SEGMENT)), 0
        array: Array = np.ndarray(shape, dtype, self._segment, self._end)
        self._end += -(-size // 64) * 64
        return array

    def selected(self, array: Array, places: Array) -> Array:
        """Return the rows of an array at these places (n,)."""
        rows = self.empty((len(places), *array.shape[1:]), array.dtype)
        for block in blocks(rows):
            rows[block] = array[places[block]]
            release(array)
        return rows

    def joined(self, arrays: Sequence[Array]) -> Array:
        """Return arrays (n, \\*) one after another, as one array."""
        first = arrays[0]
        rows = self.empty((sum(map(len, arrays)), *first.shape[1:]), first.dtype)
        begin = 0
        for array in arrays:
            for block in blocks(array):
                part = array[block]
                rows[begin : begin + len(part)] = part
                begin += len(part)
                release(rows)
        return rows


def blocks(array: Array) -> Iterator[slice]:
    """Yield slices of an array of at most `BLOCK` bytes, and release each one after its use."""
    size = prod(array.shape[1:]) * array.itemsize
    step = max(1, BLOCK // max(1, size))
    for begin in range(0, len(array), step):
        yield slice(begin, min(begin + step, len(array)))
        release(array)


def release(array: Array) -> None:
    """Take an array's file out of memory; the values are read again when they are used."""
    base: object = array
    while base is not None and not isinstance(base, mmap.mmap):
        base = getattr(base, "base", None)  # sliding windows have a base that is no array
    if base is not None and hasattr(base, "madvise"):
        base.madvise(mmap.MADV_DONTNEED)


def places_of(array: Array, is_place: Callable[[Array, Array], Array]) -> list[int]:
    """Return the places i from 1 at which `is_place` is true of array[i - 1] and array[i]."""
    places = list[int]()
    for block in blocks(array[1:]):
        before = array[block.start : block.stop]
        after = array[block.start + 1 : block.stop + 1]
        places += (np.flatnonzero(is_place(before, after)) + block.start + 1).tolist()
    return places


def _mapped(size: int) -> mmap.mmap:
    """Return the memory of a new file of this size, whose space on the disk is reserved."""
    try:
        with tempfile.TemporaryFile(prefix="shoal-") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise DataError(
            f"{tempfile.gettempdir()} has no room for {size / 2**30:.2g} GiB of samples or windows "
            f"({error.strerror}). Name a folder with more room: TMPDIR=FOLDER"
        ) from None
