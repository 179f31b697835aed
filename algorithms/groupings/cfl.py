"""Clustered federated learning: cut a group whose mean has converged while its members pull apart.

F. Sattler, K.-R. Mueller, W. Samek. Clustered Federated Learning: Model-Agnostic Distributed
Multitask Optimization under Privacy Constraints. IEEE Transactions on Neural Networks and Learning
Systems 32(8), 2021. AutoCFL calls it MTCFL. Legend: u_i the update of device i in a round, a_ij the
cosine between u_i and u_j. A group of at least three devices is cut when

- its mean update sum_i n_i u_i / sum_i n_i is shorter than eps1 s,
- the longest update of its members is longer than eps2 s,
- and its best cut separates: gamma < sqrt((1 - a_cross) / 2), where a_cross is the largest a_ij
  between the two halves.

The best cut has the least a_cross (the paper's Algorithm 1, which is single linkage). The authors'
code ignores gamma and uses complete linkage. Halves are cut again in later rounds.

Norms of updates depend on the model and the learning rate. The authors' code has 0.4 and 1.6 for
its own model; the paper advises a tenth of the largest mean update for eps1, and 1 to 10 times eps1
for eps2. Here s is the largest norm that the mean update of the uncut fleet has had. Small fleets
do not reach a tenth: with 20 devices the noise of SGD alone keeps the mean at 0.13 to 0.2 of s over
40 rounds, so eps1 is 0.4. eps2 is the upper end of the advice, s itself.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import scipy

from algorithms.core.contract import Grouped, GroupingMemory, LocalModel, Matrix, Probe
from algorithms.core.keys import NEWCOMER
from algorithms.groupings.base import (
    Defaults,
    check_shared,
    keep_names,
    place,
    remember_first,
    settle,
)
from algorithms.spec import option
from wire.arrays.tensors import Array, Tensors

Linkage = Literal["single", "complete", "average"]
LINKAGES: tuple[Linkage, ...] = ("single", "complete", "average")
FEWEST_DEVICES = 3
"""Minimum size of a group that is cut, as in the authors' code."""


class Cfl(Defaults):
    """Recursive bi-partition by the cosine of updates."""

    name: ClassVar[str] = "cfl"
    citation: ClassVar[str] = "Sattler et al., IEEE TNNLS 32(8), 2021"
    in_sums = "cannot"
    compares = True
    eps1: float = option(0.4, "mean update of a converged group, of the largest one", low=0)
    eps2: float = option(1.0, "longest update of a group that is cut, of the same", low=0)
    gamma: float = option(0.5, "separation of two halves", low=0, high=1)
    linkage: Linkage = option("single", "distance between two halves", choices=LINKAGES)

    def check(self, model: Tensors, probe: Probe | None) -> None:
        check_shared(self.name, model)

    def group(
        self, memory: GroupingMemory, models: Sequence[LocalModel], probe: Probe | None, seed: int
    ) -> Grouped:
        arrays = remember_first(memory.arrays, models, lambda model: model.update)
        before = settle(memory.membership, models, arrays, directions=True)
        groups = sorted(set(before.values()), key=int)
        updates = np.stack([model.update for model in models])
        norms, cosines = compare(updates)
        scale = float(memory.info.get("scale", 0.0))
        notes: dict[str, dict[str, float]] = {}
        halves: dict[str, int] = {}
        for group in groups:
            origin = group if memory.membership else NEWCOMER
            rows = np.array(
                [
                    i
                    for i, m in enumerate(models)
                    if before[m.device_id] == group and m.start == origin
                ],
                np.int64,
            )
            if not len(rows):
                continue
            mean, largest = (
                mean_norm(updates[rows], [models[i].num_examples for i in rows]),
                float(norms[rows].max()),
            )
            scale = max(scale, mean) if len(groups) == 1 else scale
            labels, separation = bipartition(cosines[np.ix_(rows, rows)], self.linkage)
            converged = (
                len(rows) >= FEWEST_DEVICES
                and mean < self.eps1 * scale
                and largest > self.eps2 * scale
            )
            if cut := converged and separation > self.gamma:
                halves |= {
                    models[i].device_id: int(label) for i, label in zip(rows, labels, strict=True)
                }
            notes[group] = {
                "mean": round(mean, 6),
                "max": round(largest, 6),
                "separation": round(separation, 4),
                "cut": cut,
            }
        membership = settle(_cut(before, halves, arrays), models, arrays, directions=True)
        ids = tuple(model.device_id for model in models)
        return Grouped(
            GroupingMemory(membership, arrays, {"scale": scale}),
            {"cosine": 1.0 - cosines},
            ids,
            {"groups": notes},
        )


def compare(updates: Array) -> tuple[Array, Matrix]:
    """Return the norms (N,) of updates (N, D), and the cosines (N, N) between them.

    The cosine to an update that is zero is 0.
    """
    norms = np.sqrt(np.einsum("nd,nd->n", updates, updates, dtype=np.float64))
    units = updates / np.where(norms > 0, norms, 1.0).astype(np.float32)[:, None]
    cosines = np.clip((units @ units.T).astype(np.float64), -1.0, 1.0)
    np.fill_diagonal(cosines, 1.0)
    return norms, (cosines + cosines.T) / 2


def mean_norm(updates: Array, num_examples: Sequence[int]) -> float:
    """Return the length of sum_i n_i u_i / sum_i n_i."""
    counts = np.maximum(np.array(num_examples, np.float64), 1.0)
    return float(np.linalg.norm((counts / counts.sum()) @ updates))


def bipartition(cosines: Matrix, method: Linkage = "single") -> tuple[Array, float]:
    """Return the half (N,) of each device, and the separation sqrt((1 - a_cross) / 2).

    Halves are found by agglomeration. Fewer than two devices give (zeros, 0).
    """
    if len(cosines) < 2:
        return np.zeros(len(cosines), np.int64), 0.0
    labels = scipy.cluster.hierarchy.cut_tree(
        scipy.cluster.hierarchy.linkage(
            scipy.spatial.distance.squareform(1.0 - cosines, checks=False), method
        ),
        n_clusters=2,
    ).ravel()
    cross = float(cosines[labels == 0][:, labels == 1].max())
    return labels, float(np.sqrt((1.0 - cross) / 2))


def _cut(before: Mapping[str, str], halves: Mapping[str, int], arrays: Tensors) -> dict[str, str]:
    """Return `before` after the groups of the devices in `halves` were cut.

    Other devices of these groups were absent or are new. Each joins the nearer half; a device that
    cannot be compared starts again without a group.
    """
    labels = {
        device_id: str(2 * int(group) + halves.get(device_id, 0))
        for device_id, group in before.items()
    }
    for group in {before[device_id] for device_id in halves}:
        member_labels = {
            device_id: labels[device_id] for device_id in halves if before[device_id] == group
        }
        others = [
            device_id
            for device_id, name in before.items()
            if name == group and device_id not in halves
        ]
        placed = place(others, member_labels, arrays, directions=True)
        labels = {
            d: placed.get(d, label) for d, label in labels.items() if d in placed or d not in others
        }
    ids = sorted(labels)
    return keep_names(ids, np.array([int(labels[device_id]) for device_id in ids]), before)
