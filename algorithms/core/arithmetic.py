"""The two heaviest computations of the server's half, as a port: whoever runs an algorithm may give
it a faster machine for them.

`host.native.arithmetic` has one in C++. Without it numpy and torch compute the same, within
rounding.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from algorithms.models.reading.network import Network
from wire.arrays.tensors import Array


class ColumnSums(Protocol):
    """sum_i weights_i w_i over some rows of an arena, made for some columns at a time."""

    def add_to(self, total: Array, columns: slice) -> None:
        """Add the sum over these columns to those of total (D,) float64. Threads may do so at a
        time, each with columns of its own."""


class Arithmetic(Protocol):
    """What an algorithm asks first; None says that numpy or torch have to do it."""

    def column_sums(self, arena: Array, rows: Array, weights: Array) -> ColumnSums | None:
        """The weighted sum of the rows (N,) of an arena (M, D) float32, C order, with weights (N,)
        float32."""

    def probabilities(
        self, network: Network, models: Sequence[Mapping[str, Array]], inputs: Array
    ) -> Array | None:
        """Class probabilities (N, z, classes) float32 of N models, tensors by ``shared/NAME`` and
        ``statistic/NAME``, for inputs (z, channels, time) float32."""


class NumpyArithmetic:
    """Leaves both to numpy and torch."""

    def column_sums(self, arena: Array, rows: Array, weights: Array) -> ColumnSums | None:
        return None

    def probabilities(
        self, network: Network, models: Sequence[Mapping[str, Array]], inputs: Array
    ) -> Array | None:
        return None


NUMPY = NumpyArithmetic()
