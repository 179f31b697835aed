"""Averages: FedAvg's, weighted by examples, and DistFL's, in which every model of a group counts the same."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch

from algorithms.contract import Combined, Slice
from algorithms.means.stack import Stack, column_blocks
from wire.tensors import Array

ON_ONE_THREAD = 2**14
"""Numbers that torch adds without sharing them among threads, which costs more than it saves."""


def shares(counts: Array) -> Array:
    """Counts (N,) as shares that sum to 1; equal ones where all counts are 0."""
    counts = np.asarray(counts, dtype=np.float64)
    return counts / counts.sum() if counts.any() else np.full(len(counts), 1.0 / len(counts))


def average(stack: Stack, weights: Array) -> Combined:
    """sum_i weights_i w_i of models (N, D) with shares (N,) that sum to 1."""
    return Combined(stack.weighted_sum(weights), weights)


class WeightedMean:
    """sum_i n_i w_i / sum_i n_i."""

    name: ClassVar[str] = "weighted"
    citation: ClassVar[str] = "McMahan et al., AISTATS 2017, Algorithm 1"

    def combine(self, stack: Stack, num_examples: Array, layout: Sequence[Slice], seed: int) -> Combined:
        return average(stack, shares(num_examples))


class UniformMean:
    """sum_i w_i / N."""

    name: ClassVar[str] = "uniform"
    citation: ClassVar[str] = "Liu et al., IMWUT 2021, Eq. 3 and 7"

    def combine(self, stack: Stack, num_examples: Array, layout: Sequence[Slice], seed: int) -> Combined:
        return average(stack, shares(np.ones(len(stack))))


class StreamingMean:
    """What `WeightedMean` (or `UniformMean`, where every count given is 1) makes of models that come one at a time, in memory for two
    models, however many come. It is of use where nobody looks at the models besides: see `Algorithm.streams`. The sum is made in
    float64 and depends, in its last bits, on the order.
    """

    def __init__(self, size: int) -> None:
        """`size`: D, the numbers in a model."""
        self._sum, self._count, self._weight = torch.zeros(size, dtype=torch.float64), 0, 0

    def add(self, model: Array, num_examples: int) -> None:
        """Take in a model (D,) float32, writable, that was trained on so many examples; it is not kept."""
        if num_examples and not self._weight:
            self._sum.zero_()  # models without examples count only where no model has any
        if num_examples or not self._weight:
            values = torch.from_numpy(model)
            for columns in column_blocks(len(model), ON_ONE_THREAD):
                self._sum[columns].add_(values[columns], alpha=float(num_examples or 1))
        self._count, self._weight = self._count + 1, self._weight + num_examples

    def result(self) -> Array:
        """The mean (D,) float32 of what has come.

        Raises:
            ValueError: nothing has come.
        """
        if not self._count:
            raise ValueError("the mean of no models: expected at least one to be added")
        return np.asarray((self._sum / (self._weight or self._count)).numpy().astype(np.float32))
