"""Averages: FedAvg's, weighted by examples, and DistFL's, with equal weights within a group."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from algorithms.core.contract import Combined, InSums, Mean, Slice
from algorithms.core.stack import Stack
from wire.arrays.tensors import Array


def shares(counts: Array) -> Array:
    """Return counts (N,) as shares that sum to 1; equal shares if all counts are 0."""
    counts = np.asarray(counts, dtype=np.float64)
    return counts / counts.sum() if counts.any() else np.full(len(counts), 1.0 / len(counts))


def average(stack: Stack, weights: Array) -> Combined:
    """Return sum_i weights_i w_i of models (N, D) with shares (N,) that sum to 1."""
    return Combined(stack.weighted_sum(weights), weights)


class WeightedMean(Mean):
    """sum_i n_i w_i / sum_i n_i."""

    name: ClassVar[str] = "weighted"
    citation: ClassVar[str] = "McMahan et al., AISTATS 2017, Algorithm 1"
    in_sums: ClassVar[InSums] = "cannot"
    averages: ClassVar[bool] = True
    by_examples: ClassVar[bool] = True

    def combine(
        self, stack: Stack, num_examples: Array, layout: Sequence[Slice], seed: int
    ) -> Combined:
        return average(stack, shares(num_examples if self.by_examples else np.ones(len(stack))))


class UniformMean(WeightedMean):
    """sum_i w_i / N."""

    name: ClassVar[str] = "uniform"
    citation: ClassVar[str] = "Liu et al., IMWUT 2021, Eq. 3 and 7"
    in_sums = "works"
    by_examples: ClassVar[bool] = False
