"""Credit: a mean that weights models by how well an auto-encoder rebuilds their convolutions.

S. Li, Y. Cheng, Y. Liu, W. Wang, T. Chen. Abnormal Client Behavior Detection in Federated Learning.
arXiv 1910.09933, 2019 (a deep auto-encoder, trained beforehand on models that were trained on
public data). With the same authors: Learning to Detect Malicious Clients for Robust Federated
Learning. arXiv 2002.00211, 2020. P. Baldi, K. Hornik. Neural networks and principal component
analysis. Neural Networks 2, 1989 (the best linear auto-encoder).

Differences from the paper:

- There is no public data, so the auto-encoder is trained on the models of the round. It is linear,
  which for squared error is a principal component analysis: exact, without a random start, and
  computed from inner products, whatever the size of the model.
- An auto-encoder rebuilds the models that it was trained on best. It is therefore trained on the
  better half of the models only: first the half nearest to the coordinate-wise median, then the
  half that it rebuilds best, repeated until that half stays the same. The error of a model always
  comes from an auto-encoder that was not trained on it. This needs more than half of the devices to
  be honest, which the paper does not.
- The papers' formula of the credit was not available. Here credit is 1 up to the median error and
  falls with a power of the error beyond.
- Numbers of examples do not count, because a device could claim any number.

The paper's method examines convolutions only, and so does this one: it does not see an attack on
other layers. BatchNorm's running statistics, which false values ruin as surely as weights, have an
auto-encoder of their own. The lower of the two credits counts.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from algorithms.core.contract import Combined, Matrix, Mean, Slice
from algorithms.core.stack import Stack
from algorithms.means.weighted import average, shares
from algorithms.spec import option
from wire.arrays import names
from wire.arrays.tensors import Array

MOST_ROUNDS = 10
"""Maximum number of times the trusted half is chosen anew; in practice two or three suffice."""
MOST_LEFT_OUT = 64
"""Maximum number of trusted models for which an auto-encoder is fitted without each one.

The error of a trusted model then comes from an auto-encoder that has not seen it. Among more
models a single one hardly changes the auto-encoder.
"""

ROUNDING = 1e-10
"""Squared errors below this share of a model's squared distance from the mean count as 0."""


class Credit(Mean):
    """sum_i c_i w_i / sum_i c_i with the credit c_i = min(1, (median error / error_i) ^ power)."""

    name: ClassVar[str] = "credit"
    citation: ClassVar[str] = "Li et al., arXiv 1910.09933, 2019"
    in_sums = "cannot"
    num_components: int = option(2, "width of the auto-encoder's bottleneck", low=0)
    power: float = option(
        2.0, "how fast credit falls; from 1 on, an attack cannot grow by growing its weights", low=1
    )

    def combine(
        self, stack: Stack, num_examples: Array, layout: Sequence[Slice], seed: int
    ) -> Combined:
        """Return the mean weighted by credit.

        Two models both have full credit: neither is more normal than the other.
        """
        credit = np.ones(len(stack))
        for columns in watched_columns(layout, stack.size) if len(stack) > 2 else ():
            errors = reconstruction_errors(stack.gram(columns), self.num_components)
            beyond = errors > np.median(errors)
            credit[beyond] = np.minimum(
                credit[beyond], (np.median(errors) / errors[beyond]) ** self.power
            )
        return average(stack, shares(credit))


def watched_columns(layout: Sequence[Slice], size: int) -> list[Array]:
    """Return the masks (size,) bool of the columns to examine, one mask per auto-encoder.

    The first mask selects the weights of convolutions, or all weights if the model has no
    convolution. The second selects running statistics; it is left out if the model has none.
    """
    weights, statistics = np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
    for entry in layout:
        weights[entry.start : entry.stop] = (
            names.role_of(entry.key) == names.SHARED and len(entry.shape) >= 3
        )
        statistics[entry.start : entry.stop] = names.role_of(entry.key) == names.STATISTIC
    return [weights if weights.any() else ~statistics, *([statistics] if statistics.any() else [])]


def reconstruction_errors(gram: Matrix, num_components: int) -> Array:
    """Return the Euclidean distance (N,) of each model from its reconstruction.

    The auto-encoder is trained on the better half of the models. `gram` are inner products (N, N).
    """
    half = len(gram) // 2 + 1
    trusted = np.sort(np.argsort(np.diag(gram), kind="stable")[:half])
    errors = np.zeros(len(gram))
    # two models have the same error, so there is no better half
    for _ in range(MOST_ROUNDS if half > 2 else 1):
        errors = _errors(gram, trusted, num_components)
        better = np.sort(np.argsort(errors, kind="stable")[:half])
        if np.array_equal(better, trusted):
            break
        trusted = better
    return errors


def _errors(gram: Matrix, trusted: Array, num_components: int) -> Array:
    inside = (
        np.isin(np.arange(len(gram)), trusted)
        if len(trusted) <= MOST_LEFT_OUT
        else np.zeros(len(gram), dtype=bool)
    )
    errors = np.empty(len(gram))
    errors[~inside] = _distances(gram, trusted, np.flatnonzero(~inside), num_components)
    for i in np.flatnonzero(inside):
        errors[i] = _distances(gram, trusted[trusted != i], np.array([i]), num_components)[0]
    return errors


def _distances(gram: Matrix, seen: Array, models: Array, num_components: int) -> Array:
    """Return the distances of models `models` from the principal subspace of models `seen`."""
    inner, cross = gram[np.ix_(seen, seen)], gram[np.ix_(models, seen)]
    columns, whole = inner.mean(0), inner.mean()
    squared = gram[models, models] - 2 * cross.mean(1) + whole
    values, vectors = np.linalg.eigh(inner - columns[:, None] - columns[None, :] + whole)
    components = np.arange(len(seen)) >= len(seen) - min(num_components, len(seen) - 1)
    components &= values > 1e-12 * max(values[-1], 0.0)
    codes = (
        (cross - columns - cross.mean(1, keepdims=True) + whole)
        @ vectors[:, components]
        / np.sqrt(values[components])
    )
    residual = squared - (codes**2).sum(1)
    return np.sqrt(np.where(residual > ROUNDING * squared, residual, 0.0))
