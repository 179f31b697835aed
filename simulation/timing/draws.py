"""Random numbers as a function of their purpose, so that no draw depends on earlier draws.

A hash of a key and of counters gives each number (J. Salmon et al., Parallel random numbers: as
easy as 1, 2, 3, SC 2011): the draw for device 7 at second 120 is equal for every caller and every
call. The hash is the finaliser of SplitMix64 (G. Steele et al., OOPSLA 2014).
"""

import numpy as np

from wire.arrays.tensors import Array

GOLDEN = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
MASK = (1 << 64) - 1


def make_key(*parts: int) -> int:
    """Return a key of 64 bits from whole numbers: a seed, a purpose, and counters."""
    key = 0
    for part in parts:
        key = (key + (part & MASK) * GOLDEN + GOLDEN) & MASK
        key = ((key ^ (key >> 30)) * FIRST) & MASK
        key = ((key ^ (key >> 27)) * SECOND) & MASK
        key ^= key >> 31
    return key


def uniform(key: int, *columns: Array) -> Array:
    """Return uniform float64 in [0, 1), one for each row of the columns.

    The columns (n,) are int64 or float64; their bits are hashed.
    """
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
