"""What a few runs allow to be said: intervals, and tests of pairs. Pure.

Student's t for the mean of a few values; F. Wilcoxon, Individual comparisons by ranking methods,
Biometrics 1945; S. Holm, A simple sequentially rejective multiple test procedure, Scandinavian
Journal of Statistics 1979. J. Demsar, JMLR 2006, says why such a test.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """How much more one method has than another, over pairs."""

    mean: float
    half_width: float | None
    """Of the 95 % interval of the mean; None with one pair."""
    p: float
    """Of Wilcoxon's signed-rank test, two-sided: how likely such ranks are if neither method is
    better."""
    pairs: int


def half_width(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % interval of the mean, by Student's t; None for fewer than two
    values."""
    count = len(values)
    if count < 2:
        return None
    return (
        float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, count - 1))
        * statistics.stdev(values)
        / math.sqrt(count)
    )


def compare_pairs(differences: Sequence[float]) -> Difference:
    """Test differences of pairs, at least one. Pairs that are equal do not count in the test; if
    all are, p is 1.

    Raises:
        ValueError: no pairs.
    """
    if not differences:
        raise ValueError("no pairs to compare")
    rounded = np.round(
        differences, 9
    )  # what differs by rounding alone is equal, and has the same rank
    p = float(scipy.stats.wilcoxon(rounded).pvalue) if rounded.any() else 1.0
    return Difference(statistics.fmean(differences), half_width(differences), p, len(differences))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values, corrected for how many there are: the chance of one false discovery among those
    below 0.05 is at most 5 %."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted
