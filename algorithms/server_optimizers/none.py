"""The server's step of FedAvg: the mean of the devices' models is the next model."""

from collections.abc import Mapping
from typing import ClassVar

from algorithms.core.contract import Moved
from wire.arrays.tensors import Array, Tensors


class NoServerOptimizer:
    """x <- x + change."""

    name: ClassVar[str] = "no-server-optimizer"
    citation: ClassVar[str] = "McMahan et al., AISTATS 2017, Algorithm 1"
    moves: ClassVar[bool] = False
    moments: Mapping[str, float] = {}

    def step(self, change: Array, moments: Tensors) -> Moved:
        return Moved(change, {})
