"""Stores whose disk is full."""

from collections.abc import Sequence, Set

from aggregator.fleet.events import Event
from aggregator.fleet.records import Fleet
from aggregator.ports import StorageFailed
from aggregator.storage.memory import MemoryBlobs, MemoryStore
from aggregator.view.round_record import RoundRecord


class Disk:
    """A disk that may be full."""

    full = False

    def use(self) -> None:
        """Raise StorageFailed if there is no space."""
        if self.full:
            raise StorageFailed("no space left on device")


class FullStore(MemoryStore):
    """A store on such a disk."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk

    def commit(
        self,
        before: Fleet,
        after: Fleet,
        changed: Set[str],
        events: Sequence[Event] = (),
        records: Sequence[tuple[str, RoundRecord]] = (),
    ) -> None:
        self._disk.use()
        super().commit(before, after, changed, events, records)

    def check(self) -> None:
        self._disk.use()


class FullBlobs(MemoryBlobs):
    """Blobs on such a disk."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk

    def put(self, *payloads: bytes) -> list[str]:
        self._disk.use()
        return super().put(*payloads)
