"""The two heaviest computations of the server's half, as a port: whoever runs an algorithm may give
it a faster machine for them.

`host.native.arithmetic` has one in C++. Without it numpy and torch compute the same, within
rounding.
"""

from collections.abc import Callable, Mapping, Sequence

from algorithms.models.reading.network import Network
from wire.arrays.tensors import Array

AddColumns = Callable[[Array, slice], None]
"""Adds a weighted sum over these columns to those of a total (D,) float64. Threads may call it at a
time, each with columns of its own."""


class Arithmetic:
    """What an algorithm asks first; None says that numpy or torch have to do it, as here."""

    def column_sums(self, arena: Array, rows: Array, weights: Array) -> AddColumns | None:
        """The weighted sum sum_i weights_i w_i of the rows (N,) of an arena (M, D) float32, C
        order, with weights (N,) float32, made for some columns at a time."""
        return None

    def probabilities(
        self, network: Network, models: Sequence[Mapping[str, Array]], inputs: Array
    ) -> Array | None:
        """Class probabilities (N, z, classes) float32 of N models, tensors by ``shared/NAME`` and
        ``statistic/NAME``, for inputs (z, channels, time) float32."""
        return None


NUMPY = Arithmetic()
