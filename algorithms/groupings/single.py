"""No grouping: one model for the whole fleet."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from algorithms.core.contract import Grouped, GroupingMemory, LocalModel, Probe
from algorithms.groupings.base import Defaults


class SingleGroup(Defaults):
    """One group, ``0``, for every device."""

    name: ClassVar[str] = "none"
    citation: ClassVar[str] = "McMahan et al., AISTATS 2017"
    in_sums = "works"
    reads_models = False

    def group(
        self, memory: GroupingMemory, models: Sequence[LocalModel], probe: Probe | None, seed: int
    ) -> Grouped:
        ids = tuple(model.device_id for model in models)
        return Grouped(
            replace(memory, membership=memory.membership | dict.fromkeys(ids, "0")), device_ids=ids
        )
