"""FL+HC: federated averaging for some rounds, then one agglomerative clustering of the updates.

C. Briggs, Z. Fan, P. Andras. Federated learning with hierarchical clustering of local updates to
improve training on non-IID data. IJCNN 2020. After the clustering, each cluster trains its own
model. The clustering is in round 5, as in AutoCFL's experiments (section 5.1).

The paper leaves the distance at which the tree is cut to the user, and no distance fits every
model. Without a threshold, this file cuts the tree at JUMP times the median height of its merges.
As long as most merges join devices of one cluster, the median is the height of noise, in any unit.
Under Ward all merges inside a cluster have about the same height, but a merge of two clusters grows
with their sizes.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import scipy

from algorithms.core.contract import Grouped, GroupingMemory, LocalModel, Matrix, Probe
from algorithms.groupings.base import (
    Defaults,
    check_shared,
    keep_names,
    place,
    remember_first,
    settle,
)
from algorithms.groupings.views import euclidean_coordinates
from algorithms.spec import option
from wire.arrays.tensors import Array, Tensors
from wire.errors import ConfigError

Linkage = Literal["ward", "complete", "average", "single"]
Metric = Literal["euclidean", "cosine", "manhattan"]
METRICS: tuple[Metric, ...] = ("euclidean", "cosine", "manhattan")
"""Options of `metric`.

``cosine`` is the Euclidean distance between updates of length 1, sqrt(2 - 2 cos).
"""
JUMP: dict[Linkage, float] = {"ward": 3.0, "complete": 2.0, "average": 1.5, "single": 1.5}
"""Height of the cut, as a multiple of the median height of the merges.

For 20 devices with equal data (digits, rounds 3 and 5) the last merge was at most 2.3, 1.8, 1.4
times the median under ward, complete and average. With four groups of labels or two rotations the
merges of groups were at least 3.6, 2.0, 1.6 times the median. Unequal numbers of examples spread
updates as groups do: AutoCFL reports two clusters of FL+HC for such a fleet (Table 3), and this
code finds two as well.
"""


class Hierarchical(Defaults):
    """One agglomerative clustering of the updates; `threshold` is in the unit of `metric`."""

    name: ClassVar[str] = "hierarchical"
    citation: ClassVar[str] = "Briggs et al., IJCNN 2020"
    in_sums = "cannot"
    compares = True
    rounds: int = option(5, "round of the clustering", low=1)
    threshold: float | None = option(
        None, "distance at which the tree is cut, if not by its merges", above=0
    )
    linkage: Linkage = option(
        "ward", "distance between clusters, of those of their devices", choices=tuple(JUMP)
    )
    metric: Metric = option("euclidean", "distance between updates", choices=METRICS)

    def __init__(self, *values: Any, **options: Any) -> None:
        super().__init__(*values, **options)
        if self.linkage == "ward" and self.metric == "manhattan":
            raise ConfigError(
                "metric must be euclidean or cosine with linkage 'ward', got 'manhattan'"
            )

    def check(self, model: Tensors, probe: Probe | None) -> None:
        check_shared(self.name, model)

    def group(
        self, memory: GroupingMemory, models: Sequence[LocalModel], probe: Probe | None, seed: int
    ) -> Grouped:
        arrays = remember_first(memory.arrays, models, lambda model: model.update)
        ids = tuple(model.device_id for model in models)
        if "clustered" in memory.info:
            return Grouped(
                GroupingMemory(settle(memory.membership, models, arrays), arrays, memory.info),
                device_ids=ids,
            )
        rounds = int(memory.info.get("rounds", 0)) + 1
        together = memory.membership | dict.fromkeys(ids, "0")
        if rounds < self.rounds or len(models) < 2:
            return Grouped(GroupingMemory(together, arrays, {"rounds": rounds}), device_ids=ids)
        distances = pairwise(np.stack([model.update for model in models]), self.metric)
        labels, threshold = cut(distances, self.linkage, self.threshold)
        membership = keep_names(ids, labels, together)
        away = [device_id for device_id in together if device_id not in membership]
        membership |= place(away, membership, arrays)
        notes: dict[str, Any] = {"clustered": rounds, "threshold": round(threshold, 6)}
        return Grouped(
            GroupingMemory(membership, arrays, {"clustered": rounds}),
            {"updates": scipy.spatial.distance.squareform(distances)},
            ids,
            notes,
        )


def pairwise(updates: Array, metric: Metric) -> Matrix:
    """Return the distances between updates (N, D), condensed (N (N - 1) / 2,)."""
    if metric == "manhattan":
        return np.asarray(scipy.spatial.distance.pdist(updates.astype(np.float64), "cityblock"))
    if metric == "cosine":
        norms = np.linalg.norm(updates.astype(np.float64), axis=1, keepdims=True)
        updates = updates / np.where(norms > 0, norms, 1.0)
    return np.asarray(scipy.spatial.distance.pdist(euclidean_coordinates(updates)))


def cut(distances: Matrix, method: Linkage, threshold: float | None) -> tuple[Array, float]:
    """Return the labels (N,) of the clusters below a threshold, and that threshold.

    Without `threshold`, it is JUMP times the median height of the merges.
    """
    tree = scipy.cluster.hierarchy.linkage(distances, method)
    height = JUMP[method] * float(np.median(tree[:, 2])) if threshold is None else threshold
    return scipy.cluster.hierarchy.fcluster(tree, height, "distance") - 1, height
