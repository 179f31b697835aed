"""Grouping into two groups of devices whose updates have opposite directions.

After `after` rounds, the devices are divided by the direction in which their updates differ most:
the first principal component of the updates, scaled to length 1. A device that comes later joins
the group whose first updates are most similar to its own.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from algorithms.core.contract import Grouped, GroupingMemory, LocalModel, Probe
from algorithms.groupings.base import Defaults, check_shared, remember_first, settle
from algorithms.spec import option
from wire.arrays.tensors import Tensors


class Opposed(Defaults):
    """Two groups, by the sign of the first principal component of the updates."""

    name: ClassVar[str] = "opposed"
    citation: ClassVar[str] = "an example"
    compares: bool = True  # it reads updates
    after: int = option(1, "round in which the devices are cut in two", low=1)

    def check(self, model: Tensors, probe: Probe | None) -> None:
        check_shared(self.name, model)

    def group(
        self, memory: GroupingMemory, models: Sequence[LocalModel], probe: Probe | None, seed: int
    ) -> Grouped:
        rounds = int(memory.info.get("rounds", 0)) + 1
        arrays = remember_first(memory.arrays, models, lambda m: m.update)
        if rounds == self.after:
            membership = {**memory.membership, **self.sides(models)}
        else:
            membership = settle(memory.membership, models, arrays, directions=True)
        return Grouped(
            replace(memory, membership=membership, arrays=arrays, info={"rounds": rounds})
        )

    def sides(self, models: Sequence[LocalModel]) -> dict[str, str]:
        """Return the group of every device; the first device is in group 0."""
        updates = np.stack(
            [m.update / max(float(np.linalg.norm(m.update)), 1e-12) for m in models]
        ).astype(np.float64)
        component = np.linalg.svd(updates - updates.mean(0), full_matrices=False)[0][:, 0]
        return {
            m.device_id: str(int(value * component[0] < 0))
            for m, value in zip(models, component, strict=True)
        }
