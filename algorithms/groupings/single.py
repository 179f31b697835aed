"""No grouping: one model for the whole fleet."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from algorithms.contract import NEWCOMER, Grouped, LocalModel, Memory, Probe


class SingleGroup:
    """Every device belongs to group ``0``."""

    name: ClassVar[str] = "none"
    citation: ClassVar[str] = "McMahan et al., AISTATS 2017"
    surveys: bool = False

    def start(self, memory: Memory, device_id: str) -> str:
        return "0" if memory.membership else NEWCOMER

    def group(self, memory: Memory, models: Sequence[LocalModel], probe: Probe, seed: int) -> Grouped:
        ids = tuple(model.device_id for model in models)
        return Grouped(replace(memory, membership=memory.membership | dict.fromkeys(ids, "0")), device_ids=ids)
