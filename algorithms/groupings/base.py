"""Defaults of most groupings, and the placing of devices that join after the fleet was split.

Most groupings let devices choose nothing, need no survey, and begin with one model. A device that
joins late trains one round from the bundle's initial model, as every device did in the first round.
The memory holds short sketches of these first models. The new model is compared with them, because
it has too little in common with the later models of the groups.
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
    InSums,
    LocalModel,
    Matrix,
    Placement,
    Probe,
    without,
)
from algorithms.core.keys import NEWCOMER
from algorithms.groupings.sums.tree import without_device
from algorithms.spec import WithOptions
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors
from wire.errors import ConfigError

FIRST = "first/"
"""Prefix of the sketches in a memory's arrays: ``first/DEVICE``."""
SKETCH = 2048
"""Maximum number of values in a sketch.

Distances and cosines between sketches are off by about 1 / sqrt(SKETCH), 2 %.
"""


class Defaults(WithOptions, ABC):
    """A grouping that uses what the server sees, and weights devices by examples as FedAvg does."""

    name: ClassVar[str]
    citation: ClassVar[str]
    mean: str = "weighted"
    """Name of the mean that the grouping's paper uses."""
    surveys: bool = False
    """True if the grouping needs a survey from every device that has no group yet."""
    resurvey: int = 0
    """Number of training rounds between two surveys of a device that has a group; 0 for never."""
    chooses: bool = False
    """True if devices choose a group's model by training loss at the start of each round."""
    compares: bool = False
    """True if the grouping reads `LocalModel.update`."""
    reads_models: bool = True
    """True if the grouping reads single models; if not, the server need not keep each of them."""
    places: bool = False
    """True if devices without labels are surveyed, because `place_by_inputs` may place them."""
    in_sums: ClassVar[InSums] = "cannot"
    """Declaration for secret mode.

    A grouping that works and needs surveys finds its groups by `algorithms.groupings.sums` there.
    """

    def check_in_sums(self) -> None:
        """Raise ConfigError if an option has a value that secret mode cannot run."""

    def begin(self, initial: Tensors, seed: int) -> dict[str, Tensors]:
        """Return the models, besides `initial`, from which groups start, by key.

        They hold the roles shared and statistic. Most groupings return none.
        """
        return {}

    def check(self, model: Tensors, probe: Probe | None) -> None:
        """Check that the grouping can work with a model's blob (roles shared, statistic).

        Raises:
            ConfigError: it needs a tensor that the objective keeps on the device.
        """

    def start(self, memory: GroupingMemory, device_id: str) -> str:
        """Return the key of the model from which a device trains in the next round.

        This is the device's group, or the only group if there is one. Otherwise it is the initial
        model: training from it shows where the device belongs.
        """
        return group_of(memory.membership, device_id)

    @abstractmethod
    def group(
        self, memory: GroupingMemory, models: Sequence[LocalModel], probe: Probe | None, seed: int
    ) -> Grouped:
        """Group devices by the models of a round, which are sorted by device id.

        Every device of `models` is in the new membership. Keys of groups are decimal numbers.
        `probe` is None if the server does not hold the whole model.
        """

    def place_by_inputs(self, memory: GroupingMemory, survey: Tensors) -> Placement | None:
        """Return the place of a device without labels, or None if the grouping cannot find one.

        `survey` holds the statistics of the device's inputs (``response/survey.mean.LAYER`` and
        ``variance.LAYER``).
        """
        return None

    def forget(self, memory: GroupingMemory, device_id: str) -> GroupingMemory:
        """Return the memory without a device's group and reports."""
        membership = {d: group for d, group in memory.membership.items() if d != device_id}
        return replace(
            memory,
            membership=membership,
            info={
                k: value if k == "tree" else without(value, device_id)
                for k, value in without_device(memory.info, device_id).items()
            },
            arrays={k: v for k, v in memory.arrays.items() if k != FIRST + device_id},
        )


def group_of(membership: Mapping[str, str], device_id: str) -> str:
    """Return the group of a device. If it has none, return the only group, or else `NEWCOMER`.

    A fleet may have no group or several groups: both give `NEWCOMER`.
    """
    if device_id in membership:
        return membership[device_id]
    groups = set(membership.values())
    return groups.pop() if len(groups) == 1 else NEWCOMER


def check_shared(name: str, model: Tensors) -> None:
    """Check that there are shared tensors, so that updates can be compared.

    Raises:
        ConfigError: no tensor is shared.
    """
    if not names.of_role(model, names.SHARED):
        raise ConfigError(
            f"{name} compares devices' updates, and with this objective all tensors stay on the "
            "device; choose another grouping or objective"
        )


def sketch(values: Array) -> Array:
    """Return a count sketch (<= SKETCH,) float32 of a tensor.

    All tensors of one size are reduced to the same random sums of the same entries.

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
    """Add a sketch of `look(model)` to `arrays` for each model trained from the initial one."""
    return arrays | {FIRST + m.device_id: sketch(look(m)) for m in models if m.start == NEWCOMER}


def place(
    device_ids: Iterable[str],
    membership: Mapping[str, str],
    arrays: Tensors,
    directions: bool = False,
) -> dict[str, str]:
    """Return the group of each device that has a sketch: the group with the nearest mean sketch.

    With `directions` the lengths of sketches do not count. Devices without a sketch are left out.
    If no group has a sketch, all devices are left out.
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
    """Return `membership` extended by every device of `models`.

    A new device is placed by its sketch; without one, it joins the group that it started from, or
    else the largest group.
    """
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
    """Return the name of each device's group, so that most devices keep their name in `before`.

    `labels` (N,) are the new groups. A group that shares no device with an old one gets the next
    number that is not in `before`. Without old groups, names are numbers in the order of each
    group's first device.
    """
    order = list(dict.fromkeys(int(g) for g in labels))
    names = sorted(set(before.values()), key=int)
    row, column = {g: i for i, g in enumerate(order)}, {name: i for i, name in enumerate(names)}
    shared = np.zeros((len(order), len(names)), np.int64)
    for device_id, label in zip(device_ids, labels, strict=True):
        if device_id in before:
            shared[row[int(label)], column[before[device_id]]] += 1
    rows, columns = scipy.optimize.linear_sum_assignment(-shared)
    name_of = {order[r]: names[c] for r, c in zip(rows, columns, strict=True) if shared[r, c]}
    fresh = max((int(name) for name in names), default=-1) + 1
    for label in order:
        if label not in name_of:
            name_of[label] = str(fresh)
            fresh += 1
    return {
        device_id: name_of[int(label)] for device_id, label in zip(device_ids, labels, strict=True)
    }
