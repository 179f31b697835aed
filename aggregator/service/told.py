"""Which records of rounds tell what devices keep, so that it can be taken out of them again."""

from collections.abc import Iterable, Set

from msgspec.structs import replace

from aggregator.core.ports import Store
from aggregator.core.record import RoundRecord


class Told:
    """An index of a campaign's records: a campaign that was resumed has several of such rounds."""

    def __init__(self, store: Store, records: Iterable[RoundRecord]) -> None:
        """`records`: those that the store has now."""
        self._store = store
        self._devices: dict[int, frozenset[str]] = {}
        self.note(records)

    def note(self, records: Iterable[RoundRecord]) -> None:
        """Take in records that were saved."""
        for record in records:
            if record.kept:
                self._devices[record.round] = frozenset(record.kept)
            else:
                self._devices.pop(record.round, None)

    def devices(self) -> set[str]:
        """Those of which a record tells what they keep."""
        return set().union(*self._devices.values())

    def without(self, device_ids: Set[str]) -> list[RoundRecord]:
        """The records that tell what these devices keep, without that.

        Raises:
            StorageFailed: they cannot be read.
        """
        told = {
            number
            for number, devices in self._devices.items()
            if not devices.isdisjoint(device_ids)
        }
        found = self._store.rounds(min(told) - 1) if told else []
        return [
            replace(r, kept={d: kept for d, kept in r.kept.items() if d not in device_ids})
            for r in found
            if r.round in told
        ]
