"""Models, and a layout of their parameters, that the tests of means share."""

import numpy as np

from algorithms.core.contract import Combined, Mean, Slice
from algorithms.core.stack import Stack
from algorithms.means.credit import Credit
from algorithms.means.gra import GroupwiseRobust
from algorithms.means.irls import ResidualReweighting
from algorithms.means.krum import Krum, MultiKrum
from algorithms.means.median import Median, TrimmedMean
from algorithms.means.robust import RobustMean
from algorithms.means.weighted import UniformMean, WeightedMean
from wire.arrays.tensors import Array

MEANS: list[Mean] = [
    WeightedMean(),
    UniformMean(),
    Median(),
    TrimmedMean(),
    TrimmedMean(share=0.4),
    Krum(),
    MultiKrum(),
    Credit(),
    ResidualReweighting(),
    GroupwiseRobust(),
    RobustMean(),
]
SIZE = 24
LAYOUT = [
    Slice("shared/conv.weight", 0, 12, (2, 2, 3)),
    Slice("shared/head.weight", 12, 20, (4, 2)),
    Slice("statistic/norm.running_mean", 20, 24, (4,)),
]
ALL_CONVOLUTION = [Slice("shared/conv.weight", 0, SIZE, (4, 2, 3))]


def by_name(mean: Mean) -> str:
    return f"{mean.name}{vars(mean) or ''}"


def models(num: int, seed: int, size: int = SIZE, spread: float = 0.3) -> Array:
    """Models that differ by `spread` around one that they share."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=size) + spread * rng.normal(size=(num, size))).astype(np.float32)


def combine(
    mean: Mean, stack: Array, counts: Array | None = None, layout: list[Slice] = LAYOUT
) -> Combined:
    return mean.combine(
        Stack(stack), np.full(len(stack), 10) if counts is None else counts, layout, 0
    )
