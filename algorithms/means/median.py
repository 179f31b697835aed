"""The median and the trimmed mean of every parameter on its own. Examples do not count: a device
could claim any number.

D. Yin, Y. Chen, K. Ramchandran, P. Bartlett. Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates. ICML 2018, Definitions 1 and 2.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from algorithms.core.contract import Combined, Slice
from algorithms.core.stack import Stack
from algorithms.spec import Limits
from wire.arrays.tensors import Array
from wire.errors import ConfigError


class Median:
    """The coordinate-wise median: right as long as fewer than half of the devices are wrong. Of two
    models it is their mean."""

    name: ClassVar[str] = "median"
    citation: ClassVar[str] = "Yin et al., ICML 2018, Definition 1"
    averages: ClassVar[bool] = False
    by_examples: ClassVar[bool] = False

    def combine(
        self, stack: Stack, num_examples: Array, layout: Sequence[Slice], seed: int
    ) -> Combined:
        return Combined(stack.median().astype(np.float32), np.full(len(stack), np.nan))


class TrimmedMean:
    """The mean of every parameter without its floor(share * N) smallest and as many largest values;
    the mean where that is none."""

    name: ClassVar[str] = "trimmed"
    citation: ClassVar[str] = "Yin et al., ICML 2018, Definition 2"
    averages: ClassVar[bool] = False
    by_examples: ClassVar[bool] = False
    limits: ClassVar[Mapping[str, Limits]] = {"share": Limits(low=0, below=0.5)}

    def __init__(self, *, share: float = 0.1) -> None:
        """`share`: left out at each end, at least 0 and below 0.5."""
        if not 0 <= share < 0.5:
            raise ConfigError(
                f"trimmed mean with share {share}: expected at least 0 and less than 0.5, it is "
                "left out at each end"
            )
        self.share = share

    def combine(
        self, stack: Stack, num_examples: Array, layout: Sequence[Slice], seed: int
    ) -> Combined:
        num = len(stack)
        cut = math.floor(self.share * num + 1e-9)
        flat = stack.mean_of_ranks(cut, num - cut).astype(np.float32)
        return Combined(flat, np.full(num, np.nan if cut else 1.0 / num))
