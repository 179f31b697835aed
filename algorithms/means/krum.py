"""Krum and Multi-Krum: select the models that are closest to their nearest neighbours.

Distances are over whole models, running statistics included. A tensor left out of the distance
could be attacked freely.

P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer. Machine Learning with Adversaries:
Byzantine Tolerant Gradient Descent. NeurIPS 2017, section 4 (Krum) and section 5 (m-Krum).
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from algorithms.core.contract import Combined, Matrix, Mean, Slice
from algorithms.core.stack import Stack
from algorithms.means.weighted import average, shares
from algorithms.spec import option
from wire.arrays.tensors import Array


def squared_distances(stack: Stack) -> Matrix:
    """Return squared Euclidean distances (N, N) between models, symmetric, zero on the diagonal."""
    gram = stack.gram()
    lengths = np.diag(gram)
    squared = np.maximum(lengths[:, None] + lengths[None, :] - (gram + gram.T), 0.0)
    np.fill_diagonal(squared, 0.0)
    return np.asarray(squared)


def krum_scores(squared: Matrix, num_attackers: int) -> Array:
    """Return the Krum score (N,) of each model, from squared distances (N, N).

    The score is the sum of a model's squared distances to its N - f - 2 nearest neighbours, or to
    its nearest one if that number is below 1.
    """
    others = np.sort(squared + np.diag(np.full(len(squared), np.inf)), axis=1)
    nearest = min(max(len(squared) - num_attackers - 2, 1), len(squared) - 1)
    return np.asarray(others[:, :nearest].sum(1))


class Krum(Mean):
    """The model with the lowest score.

    Models with equal scores are averaged: both of two models, or the closest two of three.
    """

    name: ClassVar[str] = "krum"
    citation: ClassVar[str] = "Blanchard et al., NeurIPS 2017, section 4"
    in_sums = "over cells"
    num_attackers: int | None = option(
        None,
        "devices of a group that may be attackers; at most (N - 3) // 2, the most for which Krum's "
        "guarantee holds, are assumed, and that many by default",
        low=0,
        whole=True,
    )

    def attackers(self, num_devices: int) -> int:
        """Return f, the number of attackers assumed in a group of this size."""
        most = max((num_devices - 3) // 2, 0)
        return most if self.num_attackers is None else min(self.num_attackers, most)

    def combine(
        self, stack: Stack, num_examples: Array, layout: Sequence[Slice], seed: int
    ) -> Combined:
        scores = krum_scores(squared_distances(stack), self.attackers(len(stack)))
        return average(stack, shares(scores == scores.min()))


class MultiKrum(Krum):
    """The mean of the `num_selected` models with the lowest scores.

    Up to four models are all averaged, because no attacker can be recognised among so few.
    """

    name: ClassVar[str] = "multi-krum"
    citation: ClassVar[str] = "Blanchard et al., NeurIPS 2017, section 5"
    in_sums = "over cells"
    num_attackers: int | None = Krum.num_attackers  # stays the first option
    num_selected: int | None = option(
        None, "models of the mean, at most N; N - f by default", low=1, whole=True
    )

    def combine(
        self, stack: Stack, num_examples: Array, layout: Sequence[Slice], seed: int
    ) -> Combined:
        attackers = self.attackers(len(stack))
        scores = krum_scores(squared_distances(stack), attackers)
        selected = np.zeros(len(stack))
        selected[
            np.argsort(scores, kind="stable")[: self.num_selected or len(stack) - attackers]
        ] = 1.0
        return average(stack, shares(selected))
