"""What most groupings have in common, and how a device that comes later gets its group.

Most groupings let the device choose nothing, ask for no survey, and begin from one model. A device
that comes after the fleet was split trains one round from the bundle's initial model. Every device
of the first round did the same, and the memory holds short sketches of those first models. The new
device is compared with these sketches: its model has too little in common with the groups' later
models.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import scipy

from algorithms.core.contract import (
    Grouped,
    GroupingMemory,
    LocalModel,
    Matrix,
    Placement,
    Probe,
    without,
)
from algorithms.core.keys import NEWCOMER
from algorithms.spec import WithOptions
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors
from wire.errors import ConfigError

FIRST = "first/"
"""Prefix of the sketches in a memory's arrays: ``first/DEVICE``."""
SKETCH = 2048
"""Numbers in a sketch: distances and cosines between sketches are off by about 1 / sqrt(SKETCH), 2
%."""


class Defaults(WithOptions, ABC):
    """Which devices are averaged together, and what each one trains from: a grouping by what the
    server sees, weighted by examples as FedAvg is."""

    name: ClassVar[str]
    citation: ClassVar[str]
    mean: str = "weighted"
    """Name of the mean its paper uses."""
    surveys: bool = False
    """True if it needs the survey of every device that has no group yet."""
    resurvey: int = 0
    """Rounds of training between two surveys of a device that has a group; 0 for never."""
    chooses: bool = False
    """True if devices choose among all groups' models themselves, by their training loss, at the
    start of every round."""
    compares: bool = False
    """True if it reads `LocalModel.update`."""
    reads_models: bool = True
    """True if it looks at single models at all; else they need not be held one by one."""
    places: bool = False
    """True if `place_by_inputs` may tell, so that devices without labels are asked what their
    inputs are like."""

    def begin(self, initial: Tensors, seed: int) -> dict[str, Tensors]:
        """Return the models (roles shared, statistic) by key that groups start from, besides
        `initial`; none for most."""
        return {}

    def check(self, model: Tensors, probe: Probe | None) -> None:
        """Check that it can work with what a model's blob holds (roles shared, statistic).

        Raises:
            ConfigError: it needs something that the objective keeps on the device.
        """

    def start(self, memory: GroupingMemory, device_id: str) -> str:
        """Return the key of the model that a device trains from in the next round: its group; the
        only group, if there is one; else the initial model, whose training shows where it
        belongs."""
        return group_of(memory.membership, device_id)

    @abstractmethod
    def group(
        self, memory: GroupingMemory, models: Sequence[LocalModel], probe: Probe | None, seed: int
    ) -> Grouped:
        """Decide from a round's models, sorted by device id. Every device of `models` is in the new
        membership. Keys of groups are decimal numbers. `probe` is None where the server does not
        hold the whole model.
        """

    def place_by_inputs(self, memory: GroupingMemory, survey: Tensors) -> Placement | None:
        """Return the place of a device that has no labels, by what it surveyed of its inputs
        (``response/survey.mean.LAYER`` and ``variance.LAYER``); None where the grouping cannot
        tell."""
        return None

    def forget(self, memory: GroupingMemory, device_id: str) -> GroupingMemory:
        """Return the memory without a device: without its group, and without what it reported."""
        membership = {d: group for d, group in memory.membership.items() if d != device_id}
        return replace(
            memory,
            membership=membership,
            info={k: without(value, device_id) for k, value in memory.info.items()},
            arrays={k: v for k, v in memory.arrays.items() if k != FIRST + device_id},
        )


def group_of(membership: Mapping[str, str], device_id: str) -> str:
    """The device's group; for a device without one the only group, or `NEWCOMER` where there are
    none or several."""
    if device_id in membership:
        return membership[device_id]
    groups = set(membership.values())
    return groups.pop() if len(groups) == 1 else NEWCOMER


def check_shared(name: str, model: Tensors) -> None:
    """Whether there are updates to compare.

    Raises:
        ConfigError: no tensor is shared.
    """
    if not names.of_role(model, names.SHARED):
        raise ConfigError(
            f"{name} compares devices' updates: expected at least one shared tensor, the "
            "objective keeps all of them on the device"
        )


def sketch(values: Array) -> Array:
    """A count sketch (<= SKETCH,) float32 of a tensor: the same random sums of the same entries for
    every tensor of this size.

    M. Charikar, K. Chen, M. Farach-Colton. Finding frequent items in data streams. ICALP 2002.
    """
    flat = values.ravel().astype(np.float64)
    if flat.size <= SKETCH:
        return flat.astype(np.float32)
    rng = np.random.default_rng(flat.size)
    buckets, signs = rng.integers(SKETCH, size=flat.size), rng.choice([-1.0, 1.0], size=flat.size)
    return np.bincount(buckets, signs * flat, SKETCH).astype(np.float32)


def remember_first(
    arrays: Tensors, models: Sequence[LocalModel], look: Callable[[LocalModel], Array]
) -> Tensors:
    """`arrays` with the sketches of what `look` sees in the models that started from the initial
    one."""
    return arrays | {FIRST + m.device_id: sketch(look(m)) for m in models if m.start == NEWCOMER}


def place(
    device_ids: Iterable[str],
    membership: Mapping[str, str],
    arrays: Tensors,
    directions: bool = False,
) -> dict[str, str]:
    """The group of each device that has a sketch: the one whose members' sketches have the nearest
    mean; with `directions` their lengths do not count. Devices without a sketch, and all if no
    group has one, are left out.
    """
    rows = {
        k.removeprefix(FIRST): _row(v, directions) for k, v in arrays.items() if k.startswith(FIRST)
    }
    groups = sorted({g for d, g in membership.items() if d in rows}, key=int)
    if not groups:
        return {}
    centres = np.stack(
        [np.mean([rows[d] for d in sorted(rows) if membership.get(d) == g], axis=0) for g in groups]
    )
    if directions:
        centres = np.stack([_row(c, True) for c in centres])
    return {
        d: groups[int(((centres - rows[d]) ** 2).sum(1).argmin())] for d in device_ids if d in rows
    }


def settle(
    membership: Mapping[str, str],
    models: Sequence[LocalModel],
    arrays: Tensors,
    directions: bool = False,
) -> dict[str, str]:
    """`membership` with every device of `models` in it: by its sketch, else in the group it started
    from, else in the largest."""
    new = [m for m in models if m.device_id not in membership]
    placed = place([m.device_id for m in new], membership, arrays, directions)
    groups = sorted(membership.values(), key=int)
    largest = max(dict.fromkeys(groups), key=groups.count, default="0")
    return dict(membership) | {
        m.device_id: placed.get(m.device_id, m.start if m.start in groups else largest) for m in new
    }


def _row(values: Array, directions: bool) -> Matrix:
    row = values.astype(np.float64)
    return row / max(float(np.linalg.norm(row)), 1e-300) if directions else row


def keep_names(
    device_ids: Sequence[str], labels: Array, before: Mapping[str, str]
) -> dict[str, str]:
    """Name each group of `labels` (N,), so that as many devices as possible keep the name they had
    in `before`.

    A group that shares no device with an old one gets the next number that was never used in
    `before`. Groups without a past are numbered by their first device.
    """
    order = list(dict.fromkeys(int(g) for g in labels))
    names = sorted(set(before.values()), key=int)
    row, column = {g: i for i, g in enumerate(order)}, {name: i for i, name in enumerate(names)}
    shared = np.zeros((len(order), len(names)), np.int64)
    for device_id, label in zip(device_ids, labels, strict=True):
        if device_id in before:
            shared[row[int(label)], column[before[device_id]]] += 1
    rows, columns = scipy.optimize.linear_sum_assignment(-shared)
    kept = {order[r]: names[c] for r, c in zip(rows, columns, strict=True) if shared[r, c]}
    fresh = max((int(name) for name in names), default=-1) + 1
    for label in order:
        if label not in kept:
            kept[label] = str(fresh)
            fresh += 1
    return {
        device_id: kept[int(label)] for device_id, label in zip(device_ids, labels, strict=True)
    }
