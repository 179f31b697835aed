"""Sums of many models, at the speed at which memory is read."""

import numpy as np

from host.native.library import load_library
from wire.arrays.tensors import Array


class WeightedSum:
    """sum_i weights_i w_i over rows (N,) of an arena (M, D) float32, C order; weights (N,) float32.
    Sums of 32 rows are made in float32, and those of these in float64."""

    def __init__(self, arena: Array, rows: Array, weights: Array) -> None:
        """
        Raises:
            CannotCompile: the library cannot be built here.
        """
        assert arena.flags.c_contiguous
        assert arena.dtype == weights.dtype == np.float32
        self._add = load_library().shoal_weighted_sum
        self._arena, self._weights = arena, np.ascontiguousarray(weights)
        self._starts = arena.ctypes.data + np.asarray(rows, np.int64) * arena.strides[0]

    def add_to(self, total: Array, columns: slice) -> None:
        """Add the sum over these columns to those of total (D,) float64. Threads may do so at a
        time, each with columns of its own."""
        starts, part = self._starts + 4 * columns.start, total[columns]
        self._add(
            starts.ctypes.data, self._weights.ctypes.data, len(starts), len(part), part.ctypes.data
        )
