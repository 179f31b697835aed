"""Averages: FedAvg's, weighted by examples, and DistFL's, in which every model of a group counts the same."""

from typing import ClassVar

import numpy as np

from wire.tensors import Array


class WeightedMean:
    """sum_i n_i w_i / sum_i n_i."""

    name: ClassVar[str] = "weighted"
    citation: ClassVar[str] = "McMahan et al., AISTATS 2017, Algorithm 1"

    def combine(self, stack: Array, num_examples: Array) -> Array:
        weights = num_examples.astype(np.float64)
        return np.asarray((weights / weights.sum()) @ stack, dtype=np.float32)


class UniformMean:
    """sum_i w_i / N."""

    name: ClassVar[str] = "uniform"
    citation: ClassVar[str] = "Liu et al., IMWUT 2021, Eq. 3 and 7"

    def combine(self, stack: Array, num_examples: Array) -> Array:
        return np.asarray(np.full(len(stack), 1.0 / len(stack)) @ stack, dtype=np.float32)
