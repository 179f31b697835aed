"""GRA: group-wise robust aggregation, a median of the medians of groups of similar models.

L. Yu, L. Wu. Towards Byzantine-Resilient Federated Learning via Group-Wise Robust Aggregation. In:
Federated Learning, LNCS 12500, Springer 2020, 81-92. DistFL compares with it ('directly use the
weights to distinguish malicious clients for robust aggregation').

The chapter was not available; its idea is implemented. Where data differ between devices, honest
models differ too, and a robust estimator over all models mistakes them for attackers. Within groups
of similar models it does not.

The details are our choice. Ward's tree over Euclidean distances forms the groups. Each group
becomes its coordinate-wise median. The result is the coordinate-wise median of the groups, in which
a group counts as many times as it has members; a group of more than half of the devices decides
alone. As long as fewer than a quarter of the devices are attackers, every parameter stays within
the values of honest devices, for any grouping.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import scipy

from algorithms.core.contract import Combined, Mean, Slice
from algorithms.core.stack import Stack
from algorithms.means.krum import squared_distances
from algorithms.spec import option
from wire.arrays.tensors import Array


class GroupwiseRobust(Mean):
    """The weighted median of the medians of groups of similar models; the mean of two models."""

    name: ClassVar[str] = "gra"
    citation: ClassVar[str] = "Yu and Wu, LNCS 12500, 2020"
    in_sums = "cannot"
    num_groups: int = option(
        3,
        "groups of similar models; fewer where they would have less than three members on average",
        low=1,
    )

    def combine(
        self, stack: Stack, num_examples: Array, layout: Sequence[Slice], seed: int
    ) -> Combined:
        labels = similar(stack, min(self.num_groups, max(len(stack) // 3, 1)))
        groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        centres = np.stack([stack.part(members).median() for members in groups])
        sizes = np.array([len(members) for members in groups])
        return Combined(
            weighted_median(centres, sizes).astype(np.float32), np.full(len(stack), np.nan)
        )


def similar(stack: Stack, num_groups: int) -> Array:
    """Return the group number (N,) of each model, from Ward's tree."""
    if num_groups == 1:
        return np.ones(len(stack), dtype=np.int64)
    tree = scipy.cluster.hierarchy.linkage(
        scipy.spatial.distance.squareform(np.sqrt(squared_distances(stack)), checks=False), "ward"
    )
    return np.asarray(scipy.cluster.hierarchy.fcluster(tree, num_groups, "maxclust"))


def weighted_median(values: Array, weights: Array) -> Array:
    """Return the weighted median (D,) of each column of values (G, D), with weights (G,).

    At most half of the weight lies below the median and at most half above. If two values satisfy
    this, the result is their mean.
    """
    order = np.argsort(values, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)
    twice = 2 * np.cumsum(weights[order], axis=0)
    low, high = (twice < weights.sum()).sum(0), (twice <= weights.sum()).sum(0)
    columns = np.arange(values.shape[1])
    return np.asarray((ordered[low, columns] + ordered[high, columns]) / 2)
