"""Noise in shares: each device adds a share of a sum's noise (SPEC.md, 'Noise in shares').

P. Kairouz, Z. Liu, T. Steinke. The Distributed Discrete Gaussian Mechanism for Federated Learning
with Secure Aggregation. ICML 2021: conditional rounding (Proposition 22), and the bound on a sum of
discrete Gaussians (Theorem 1). Pure.
"""

import math
from collections.abc import Callable

import numpy as np

from wire.arrays.tensors import Array
from wire.secret.question import REACH

Draw = Callable[[int], bytes]
"""Function that returns a number of random bytes."""


def rounded_norm(norm: float, count: int) -> float:
    """Return the largest Euclidean norm of `count` integers, rounded from numbers of a norm.

    Integers with a larger norm are rounded anew. The chance of that is at most 1 - e^-0.5.
    """
    return math.sqrt(norm**2 + count / 4 + norm + math.sqrt(count) / 2)


def rounded_within(numbers: Array, norm: float, draw: Draw) -> Array:
    """Return numbers (n,) as integers int64 (n,), rounded up or down at random.

    Numbers of a larger Euclidean norm are shortened to it first. The integers have at most the norm
    `rounded_norm`.
    """
    length = float(np.sqrt(np.sum(numbers**2)))
    exact = numbers * (norm / length) if length > norm else numbers
    while True:
        uniform = np.frombuffer(draw(4 * len(exact)), "<u4") / 2.0**32
        rounded = np.floor(exact + uniform)
        if np.sum(rounded**2) <= rounded_norm(norm, len(exact)) ** 2:
            return rounded.astype(np.int64)


def discrete_gaussian(deviation: float, count: int, draw: Draw) -> Array:
    """Return integers int64 (count,), drawn from the discrete Gaussian of a standard deviation.

    An integer k has a probability proportional to exp(-k^2 / (2 deviation^2)), rounded to a
    multiple of 2^-64.
    """
    uniform = np.frombuffer(draw(8 * count), "<u8")
    return np.searchsorted(_table(deviation), uniform, side="right") - _reach(deviation)


def _reach(deviation: float) -> int:
    return math.ceil(REACH * deviation)


def _table(deviation: float) -> Array:
    """Return the thresholds uint64 (2 reach,), in units of 2^-64.

    They are the chances of an integer of -reach or less, of 1 - reach or less, and so on.
    """
    reach = _reach(deviation)
    weights = np.exp(-((np.arange(-reach, reach + 1) / deviation) ** 2) / 2)
    below = np.cumsum(weights[:reach])  # from the tail on, so that small chances are exact as well
    total = 2 * below[-1] + 1
    lower = (below / total * 2.0**64).astype(np.uint64)
    return np.concatenate([lower, ~lower[::-1]])
