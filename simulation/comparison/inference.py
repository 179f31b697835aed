"""Statistics of a few runs: confidence intervals, and tests of paired differences. Pure.

The interval is Student's t for the mean of a few values. The test is F. Wilcoxon, Individual
comparisons by ranking methods, Biometrics 1945; the correction is S. Holm, A simple sequentially
rejective multiple test procedure, Scandinavian Journal of Statistics 1979. J. Demsar, JMLR 2006,
gives the reasons for such a test.
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
    """Difference between two methods over pairs of values."""

    mean: float
    half_width: float | None
    """Half width of the 95 % interval of the mean; None with one pair."""
    p: float
    """Two-sided p-value of Wilcoxon's signed-rank test.

    This is the probability of ranks this uneven if neither method is better.
    """
    pairs: int


def half_width(values: Sequence[float]) -> float | None:
    """Return half the width of the 95 % interval of the mean, or None for fewer than two values.

    The interval is Student's t.
    """
    count = len(values)
    if count < 2:
        return None
    return (
        float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, count - 1))
        * statistics.stdev(values)
        / math.sqrt(count)
    )


def compare_pairs(differences: Sequence[float]) -> Difference:
    """Return the mean of paired differences with its interval and p-value.

    Pairs without a difference do not count in the test. If all pairs are equal, p is 1.

    Raises:
        ValueError: `differences` is empty.
    """
    if not differences:
        raise ValueError("no pairs to compare")
    # differences that arise from rounding alone count as equal, and equal ones share a rank
    rounded = np.round(differences, 9)
    p = float(scipy.stats.wilcoxon(rounded).pvalue) if rounded.any() else 1.0
    return Difference(statistics.fmean(differences), half_width(differences), p, len(differences))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values with Holm's correction for the number of tests.

    The probability that any corrected value below 0.05 is a false discovery is at most 0.05.
    """
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted
