"""Random numbers as a function of what they are for, so that no draw depends on how many were made
before it.

A hash of a key and of counters gives each number (J. Salmon et al., Parallel random numbers: as
easy as 1, 2, 3, SC 2011): the draw for device 7 at second 120 is the same whoever asks, and however
often. The hash is the finaliser of SplitMix64 (G. Steele et al., OOPSLA 2014); the shuffled order
of many devices is a Feistel network over it, which gives its first elements without the others.
"""

import numpy as np

from wire.arrays.tensors import Array

GOLDEN = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
MASK = (1 << 64) - 1
SMALL = 1024
"""Up to so many devices are put in order by sorting, beyond it by a Feistel network."""
STEPS = 2
"""Each does both halves of a number: four rounds of Feistel."""


def make_key(*parts: int) -> int:
    """A key of 64 bits from whole numbers: a seed, what the numbers are for, and counters."""
    key = 0
    for part in parts:
        key = (key + (part & MASK) * GOLDEN + GOLDEN) & MASK
        key = ((key ^ (key >> 30)) * FIRST) & MASK
        key = ((key ^ (key >> 27)) * SECOND) & MASK
        key ^= key >> 31
    return key


def uniform(key: int, *columns: Array) -> Array:
    """Uniform float64 in [0, 1), one for each row of the columns (n,) of int64 or float64, which
    are taken as their bits."""
    state: Array = np.full(len(columns[0]), key, np.uint64)
    for column in columns:
        state = _mix(np.ascontiguousarray(column).view(np.uint64) * np.uint64(GOLDEN) + state)
    numbers: Array = (state >> np.uint64(11)) * 2.0**-53
    return numbers


def _mix(state: Array) -> Array:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(FIRST)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(SECOND)
    mixed: Array = state ^ (state >> np.uint64(31))
    return mixed


class Shuffled:
    """The numbers 0 to size - 1 in an order that the key decides; any piece of it costs as much as
    it is long."""

    def __init__(self, key: int, size: int) -> None:
        self._size = size
        self._keys = [
            (make_key(key, 2 * step), make_key(key, 2 * step + 1)) for step in range(STEPS)
        ]
        bits = max(2, (size - 1).bit_length())
        self._right_bits = bits // 2
        self._masks = np.uint64((1 << (bits - bits // 2)) - 1), np.uint64((1 << (bits // 2)) - 1)
        self._order = (
            np.argsort(uniform(key, np.arange(size)), kind="stable") if size <= SMALL else None
        )
        self.length = size if self._order is not None else 1 << bits
        """How far positions go; not every one of them holds a number."""

    def take(self, first: int, count: int) -> Array:
        """The numbers at positions `first` to `first + count - 1`, (n,) int64, n <= count."""
        if self._order is not None:
            return self._order[first : first + count]
        at = np.arange(first, min(first + count, self.length), dtype=np.uint64)
        left_mask, right_mask = self._masks
        left, right = at >> np.uint64(self._right_bits), at & right_mask
        for first_key, second_key in self._keys:
            left = left ^ (_scramble(right, first_key) & left_mask)
            right = right ^ (_scramble(left, second_key) & right_mask)
        numbers: Array = ((left << np.uint64(self._right_bits)) | right).view(np.int64)
        return numbers[numbers < self._size]


def _scramble(half: Array, key: int) -> Array:
    product = (half + np.uint64(key)) * np.uint64(FIRST)
    return ((product ^ (product >> np.uint64(29))) * np.uint64(SECOND)) >> np.uint64(32)
