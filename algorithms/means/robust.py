"""The robust mean: an average in which a model counts less, the farther it is from the others.

The default of `personal`. Reweighted least squares with weights that fall with the square of the
distance: A. E. Beaton, J. W. Tukey. The Fitting of Power Series. Technometrics 16, 1974, on whole
models as in K. Pillutla, S. M. Kakade, Z. Harchaoui. Robust Aggregation for Federated Learning.
IEEE TSP 2022, whose geometric median lets a device pull equally hard from any distance.

The first centre is the plain mean. Models up to `reach` median distances from the centre count
fully; beyond, the weight is the square of that distance over the model's. So the pull of a device,
its weight times its distance, falls again with its distance, and a device gains nothing by being
louder. As long as fewer than half of the devices lie, the median distance is that of an honest one.
But liars that agree move the first centre: from the share 1 / (1 + reach) on, two fifths, they are
within the reach of it and count fully. Liars that are as near as honest devices always do.

Trained tensors and running statistics have distances of their own, because one may be much larger
than the other. The lower of the two weights counts.

Numbers of examples do not count, because a device could claim any number. Of two models each
counts fully: none is farther from their mean.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from algorithms.core.contract import Combined, Mean, Slice
from algorithms.core.stack import Stack
from algorithms.means.weighted import average, shares
from algorithms.spec import option
from wire.arrays import names
from wire.arrays.tensors import Array

MOST_PASSES = 30
"""Maximum number of times the weights are computed; without enormous values, three suffice."""
STEADY = 0.05
"""Change of a device's pull, in pulls of one at the limit, from which another pass is made."""


class RobustMean(Mean):
    """sum_i a_i w_i / sum_i a_i with a_i = min(1, reach * median distance / distance_i)^2."""

    name: ClassVar[str] = "robust"
    citation: ClassVar[str] = "after Beaton and Tukey, 1974, and Pillutla et al., IEEE TSP 2022"
    in_sums = "cannot"
    reach: float = option(
        1.5, "distance up to which a model counts fully, in median distances", low=1
    )

    def combine(
        self, stack: Stack, num_examples: Array, layout: Sequence[Slice], seed: int
    ) -> Combined:
        weights, parts = np.ones(len(stack)), ranges_by_role(layout)
        for _ in range(MOST_PASSES if len(stack) > 2 else 0):
            centre, last = stack.weighted_sum(shares(weights)), weights
            weights = np.ones(len(stack))
            for ranges in parts:
                distances = stack.distances(centre, ranges)
                limit = self.reach * np.median(distances)
                beyond = np.maximum(distances, max(limit, np.finfo(float).tiny))
                weights = np.minimum(weights, np.square(limit / beyond))
            # sqrt(weights) is the limit over the distance, so this bounds the change of a pull
            if (np.abs(weights - last) <= STEADY * np.sqrt(weights)).all():
                break
        return average(stack, shares(weights))


def ranges_by_role(layout: Sequence[Slice]) -> list[list[slice]]:
    """Return the columns of each role, adjacent tensors as one range."""
    roles: dict[str, list[slice]] = {}
    for entry in layout:
        ranges = roles.setdefault(names.role_of(entry.key), [])
        if ranges and ranges[-1].stop == entry.start:
            ranges[-1] = slice(ranges[-1].start, entry.stop)
        else:
            ranges.append(slice(entry.start, entry.stop))
    return list(roles.values())
