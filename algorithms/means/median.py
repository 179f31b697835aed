"""The coordinate-wise median and the trimmed mean.

Numbers of examples do not count, because a device could claim any number.

D. Yin, Y. Chen, K. Ramchandran, P. Bartlett. Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates. ICML 2018, Definitions 1 and 2.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from algorithms.core.contract import Combined, Mean, Slice
from algorithms.core.stack import Stack
from algorithms.spec import option
from wire.arrays.tensors import Array


class Median(Mean):
    """The coordinate-wise median; the mean of two models.

    It is within the values of honest devices as long as fewer than half of the devices are
    attackers.
    """

    name: ClassVar[str] = "median"
    citation: ClassVar[str] = "Yin et al., ICML 2018, Definition 1"
    in_sums = "over cells"

    def combine(
        self, stack: Stack, num_examples: Array, layout: Sequence[Slice], seed: int
    ) -> Combined:
        return Combined(stack.median().astype(np.float32), np.full(len(stack), np.nan))


class TrimmedMean(Mean):
    """The coordinate-wise mean without the floor(share * N) smallest and as many largest values.

    This is the plain mean if floor(share * N) is 0.
    """

    name: ClassVar[str] = "trimmed"
    citation: ClassVar[str] = "Yin et al., ICML 2018, Definition 2"
    in_sums = "over cells"
    share: float = option(0.1, "devices that are left out at each end", low=0, below=0.5)

    def combine(
        self, stack: Stack, num_examples: Array, layout: Sequence[Slice], seed: int
    ) -> Combined:
        num = len(stack)
        cut = math.floor(self.share * num + 1e-9)
        flat = stack.mean_of_ranks(cut, num - cut).astype(np.float32)
        return Combined(flat, np.full(num, np.nan if cut else 1.0 / num))
