"""Means over seeds with 95 % intervals, and paired differences: what a ranking of methods may be
based on."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import t

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over `count` seeds; `half` is half of its interval by Student's t, infinite where
    there is one seed."""

    mean: float
    half: float
    count: int

    @property
    def above(self) -> bool:
        """Return True if the whole interval is above 0."""
        return self.mean - self.half > 0

    @property
    def below(self) -> bool:
        """Return True if none of the interval is above 0."""
        return self.mean + self.half <= 0

    def show(self, digits: int = 1, signed: bool = False) -> str:
        """The mean and half of the interval; of one seed, the number alone."""
        mean = round(self.mean, digits) + 0.0  # no -0
        shown = f"{mean:+.{digits}f}" if signed else f"{mean:.{digits}f}"
        return (
            f"{shown} ±{self.half:.{digits}f}"
            if math.isfinite(self.half)
            else f"{shown} (one seed)"
        )


def estimate(values: Sequence[float]) -> Estimate:
    """Return the interval of one number per seed; there is at least one."""
    count = len(values)
    if count == 1:
        return Estimate(values[0], math.inf, 1)
    half = (
        float(t.ppf((1 + CONFIDENCE) / 2, count - 1)) * statistics.stdev(values) / math.sqrt(count)
    )
    return Estimate(statistics.fmean(values), half, count)


def paired(values: Sequence[float], others: Sequence[float]) -> Estimate:
    """Return the interval of the differences, seed by seed. Both have the same seeds in the same
    order; seeds that only one has do not count."""
    return estimate([a - b for a, b in zip(values, others, strict=False)])
