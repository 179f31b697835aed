"""Surveys of devices, stored as one array (N, D) for each quantity.

Quantities are ``mean.LAYER``, ``variance.LAYER`` and ``gradient``.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import scipy

from algorithms.core.contract import GroupingMemory, LocalModel, Placement
from algorithms.groupings.significance import SAMPLE, bounded
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors

PREFIX = names.response(names.SURVEY) + "."
GRADIENT = "gradient"
NEIGHBOURS = 5
"""Number of nearest devices whose groups decide about a newcomer."""
SHORT = 512
"""Length of a stored gradient in a fleet of more than SAMPLE devices.

Distances between such gradients are off by about 1 / sqrt(SHORT), 4 %.
"""


@dataclass(frozen=True)
class Surveys:
    """Surveys of N devices, in the order of their ids."""

    device_ids: tuple[str, ...] = ()
    num_examples: tuple[int, ...] = ()
    arrays: Tensors = field(default_factory=dict, repr=False)
    """Arrays (N, D) float32 by name."""

    @classmethod
    def of(cls, memory: GroupingMemory) -> "Surveys":
        """Return the surveys in a memory."""
        info = memory.info
        return cls(
            tuple(info.get("device_ids", ())), tuple(info.get("num_examples", ())), memory.arrays
        )

    @cached_property
    def positions(self) -> dict[str, int]:
        """Row of each device."""
        return {device_id: row for row, device_id in enumerate(self.device_ids)}

    def with_reports(self, models: Sequence[LocalModel]) -> "Surveys":
        """Return the surveys with new reports, which replace earlier ones of the same devices."""
        reports = [m for m in models if any(k.startswith(PREFIX) for k in m.responses)]
        if not reports:
            return self
        counts = dict(zip(self.device_ids, self.num_examples, strict=True)) | {
            m.device_id: max(1, m.num_examples) for m in reports
        }
        ids = tuple(sorted(counts))
        rows = {device_id: row for row, device_id in enumerate(ids)}
        old_rows = np.array([rows[d] for d in self.device_ids], np.int64)
        new_rows = np.array([rows[m.device_id] for m in reports], np.int64)
        arrays: Tensors = {}
        for key in sorted(k for k in reports[0].responses if k.startswith(PREFIX)):
            name = key.removeprefix(PREFIX)
            new = np.stack([m.responses[key].ravel() for m in reports]).astype(
                np.float32, copy=False
            )
            old = self.arrays.get(name, np.empty((0, new.shape[1]), np.float32))
            if name == GRADIENT:  # one value throughout says nothing of classes
                new[new.max(1) == new.min(1)] = 0
            if name == GRADIENT and (len(ids) > SAMPLE or old.shape[1] < new.shape[1]):
                new = shorten(new)
                old = shorten(old) if len(old) and old.shape[1] > new.shape[1] else old
            arrays[name] = np.empty((len(ids), new.shape[1]), np.float32)
            if len(old):
                arrays[name][old_rows] = old
            arrays[name][new_rows] = new
        return Surveys(ids, tuple(counts[d] for d in ids), arrays)

    def without(self, device_id: str) -> "Surveys":
        """Return the surveys without a device's."""
        rest = np.array([row for row, d in enumerate(self.device_ids) if d != device_id], np.int64)
        ids, counts = (
            tuple(self.device_ids[row] for row in rest),
            tuple(self.num_examples[row] for row in rest),
        )
        return Surveys(
            ids, counts, {name: rows[rest] for name, rows in self.arrays.items()} if ids else {}
        )

    def means(self, scale: "Surveys | None" = None) -> Array:
        """Return the BatchNorm means of all layers (N, D), divided by the pooled deviation.

        The deviation is that of `scale` if it is passed. D is 0 if there is no layer.
        """
        parts = [np.empty((len(self.device_ids), 0), np.float32)]
        for name in (n for n in sorted(self.arrays) if n.startswith(names.MEAN_OF)):
            variances = (scale or self).arrays[names.VARIANCE_OF + name.removeprefix(names.MEAN_OF)]
            parts.append(self.arrays[name] / np.sqrt(bounded(variances).mean(0) + 1e-12))
        return np.hstack(parts)

    def rows(self, scale: "Surveys | None" = None) -> dict[str, Array]:
        """Return the rows (N, D) of each view: `means`, and gradients scaled to length 1."""
        gradients = self.arrays[GRADIENT]
        lengths = np.linalg.norm(gradients, axis=1, keepdims=True)
        means = self.means(scale)
        return ({"statistics": means} if means.size else {}) | {
            "labels": gradients / np.maximum(lengths, 1e-12)
        }


def nearest_group(
    surveys: Surveys, membership: Mapping[str, str], survey: Tensors
) -> Placement | None:
    """Return the group of most of the `NEIGHBOURS` devices whose inputs have the nearest means.

    A tie goes to the nearest device's group. The group's mean includes the device, so that a device
    like the others is as often far from it as they are. The result is None if the survey lacks a
    layer, as for a model without BatchNorm.
    """
    layers = [name for name in surveys.arrays if name.startswith(names.MEAN_OF)]
    members = [row for row, device_id in enumerate(surveys.device_ids) if device_id in membership]
    if not layers or not members or any(PREFIX + name not in survey for name in layers):
        return None
    device = Surveys(("",), (1,), {name: survey[PREFIX + name].reshape(1, -1) for name in layers})
    rows, row = surveys.means()[members], device.means(surveys)
    groups = [membership[surveys.device_ids[i]] for i in members]
    order = np.argsort(_distances(rows, row), kind="stable")
    nearest = [groups[i] for i in order[:NEIGHBOURS]]
    counts = Counter(nearest)
    group = max(nearest, key=lambda g: counts[g])  # a tie goes to the first, the nearest
    rows = np.vstack([rows[[name == group for name in groups]], row])
    *others, last = _distances(rows, rows.mean(0, dtype=np.float64))
    nearer = float(np.mean(np.array(others) < last))
    return Placement(group, counts[group] / len(nearest), len(nearest), nearer)


def _distances(rows: Array, centre: Array) -> Array:
    """Return the squared distance (N,) of each row (N, D) to `centre`."""
    return np.asarray(np.square(rows - centre).sum(1, dtype=np.float64))


def shorten(rows: Array) -> Array:
    """Return count sketches (N, <= SHORT) float32 of rows (N, D).

    All rows of one length are reduced to the same random sums of the same columns.

    M. Charikar, K. Chen, M. Farach-Colton. Finding frequent items in data streams. ICALP 2002.
    """
    return (
        rows if rows.shape[1] <= SHORT else np.asarray(rows @ _buckets(rows.shape[1]), np.float32)
    )


@lru_cache(maxsize=4)
def _buckets(size: int) -> Any:
    rng = np.random.default_rng(size)
    columns, signs = (
        rng.integers(SHORT, size=size),
        rng.choice(np.array([-1, 1], np.float32), size=size),
    )
    return scipy.sparse.csr_array((signs, (np.arange(size), columns)), shape=(size, SHORT))
