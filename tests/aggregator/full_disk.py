"""Stores whose disk is full."""

from collections.abc import Sequence

from aggregator.core.ports import StorageFailed
from aggregator.core.record import RoundRecord
from aggregator.core.state import Event, RunState
from aggregator.storage.memory import MemoryStore


class Disk:
    """Whether there is space."""

    full = False

    def use(self) -> None:
        if self.full:
            raise StorageFailed("no space left on device")


class FullStore(MemoryStore):
    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk

    def commit(
        self,
        events: Sequence[Event],
        records: Sequence[RoundRecord] = (),
        snapshot: RunState | None = None,
    ) -> None:
        self._disk.use()
        super().commit(events, records, snapshot)

    def check(self) -> None:
        self._disk.use()
