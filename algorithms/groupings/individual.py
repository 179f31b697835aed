"""No exchange: every device trains a separate model.

This is 'Local' in DistFL (section 5.1.3) and in AutoCFL (Table 2).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from algorithms.core.contract import Grouped, GroupingMemory, LocalModel, Probe
from algorithms.core.keys import NEWCOMER
from algorithms.groupings.base import Defaults


class Individual(Defaults):
    """One group for each device, with a number that never changes."""

    name: ClassVar[str] = "individual"
    citation: ClassVar[str] = "Liu et al., IMWUT 5(4), 2021, section 5.1.3 (Local)"
    in_sums = "cannot"

    def start(self, memory: GroupingMemory, device_id: str) -> str:
        return memory.membership.get(device_id, NEWCOMER)

    def group(
        self, memory: GroupingMemory, models: Sequence[LocalModel], probe: Probe | None, seed: int
    ) -> Grouped:
        ids = tuple(model.device_id for model in models)
        fresh = 1 + max((int(number) for number in memory.membership.values()), default=-1)
        new = (device_id for device_id in ids if device_id not in memory.membership)
        numbered = {device_id: str(number) for number, device_id in enumerate(new, fresh)}
        return Grouped(replace(memory, membership=memory.membership | numbered), device_ids=ids)
