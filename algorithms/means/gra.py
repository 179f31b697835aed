"""GRA: models are put in groups of similar ones, each group is combined robustly, then the groups
are.

L. Yu, L. Wu. Towards Byzantine-Resilient Federated Learning via Group-Wise Robust Aggregation. In:
Federated Learning, LNCS 12500, Springer 2020, 81-92. DistFL compares with it ('directly use the
weights to distinguish malicious clients for robust aggregation').

The chapter itself was not at hand. Its idea is kept: where data differ between devices, honest
models differ too, and a robust estimator over all of them mistakes them for attackers; within
groups of similar models it does not. The choices are ours: Ward's tree over Euclidean distances
makes the groups, each becomes its coordinate-wise median, and groups become one model by the
coordinate-wise median in which a group counts as many times as it has members. A group of more than
half of the devices decides alone. As long as fewer than a quarter of the devices are attackers,
every parameter stays within the values of honest devices, however they are grouped.
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
    """The weighted median of the medians of groups of similar models. Of two models it is their
    mean."""

    name: ClassVar[str] = "gra"
    citation: ClassVar[str] = "Yu and Wu, LNCS 12500, 2020"
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
    """The group (N,) of each model, by Ward's tree."""
    if num_groups == 1:
        return np.ones(len(stack), dtype=np.int64)
    tree = scipy.cluster.hierarchy.linkage(
        scipy.spatial.distance.squareform(np.sqrt(squared_distances(stack)), checks=False), "ward"
    )
    return np.asarray(scipy.cluster.hierarchy.fcluster(tree, num_groups, "maxclust"))


def weighted_median(values: Array, weights: Array) -> Array:
    """For each column of values (G, D) the value with no more than half of the weight (G,) below
    and above; the mean of two such."""
    order = np.argsort(values, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)
    twice = 2 * np.cumsum(weights[order], axis=0)
    low, high = (twice < weights.sum()).sum(0), (twice <= weights.sum()).sum(0)
    columns = np.arange(values.shape[1])
    return np.asarray((ordered[low, columns] + ordered[high, columns]) / 2)
