"""A store and a blob store in memory: for simulation, and the reference that the durable ones are
tested against."""

from collections.abc import Iterable, Mapping, Sequence

from aggregator.core.ports import BlobLost
from aggregator.core.record import RoundRecord
from aggregator.core.registry import Entry
from aggregator.core.round.machine import step
from aggregator.core.state import Event, RunState
from wire.codec import digest


class MemoryStore:
    """An `aggregator.core.ports.Store` that lives as long as the process."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._snapshot: RunState | None = None
        self._rounds: dict[int, RoundRecord] = {}

    def commit(
        self,
        events: Sequence[Event],
        records: Sequence[RoundRecord] = (),
        snapshot: RunState | None = None,
    ) -> None:
        self._events += events
        self._rounds |= {record.round: record for record in records}
        if snapshot is not None:
            self._snapshot, self._events = snapshot, []

    def load(self) -> RunState | None:
        state = self._snapshot
        for event in self._events:
            state, _ = step(state, event)
        return state

    def rounds(self, after: int = 0, until: int | None = None) -> list[RoundRecord]:
        return [
            self._rounds[number]
            for number in sorted(self._rounds)
            if after < number and (until is None or number <= until)
        ]

    def check(self) -> None:
        pass


class MemoryRegistry:
    """An `aggregator.core.ports.RegistryStore` that lives as long as the process."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def load(self) -> dict[str, Entry]:
        return dict(self._entries)

    def save(self, entries: Mapping[str, Entry], gone: Iterable[str] = ()) -> None:
        self._entries = {d: entry for d, entry in self._entries.items() if d not in {*gone}} | dict(
            entries
        )

    def scrub(self) -> None:
        pass


class MemoryBlobs:
    """An `aggregator.core.ports.Blobs` in a dictionary."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    def put(self, *payloads: bytes) -> list[str]:
        names = [digest(payload) for payload in payloads]
        self._blobs |= dict(zip(names, payloads, strict=True))
        return names

    def get(self, digest: str, offset: int = 0, size: int | None = None) -> bytes:
        try:
            return self._blobs[digest][offset : None if size is None else offset + size]
        except KeyError:
            raise BlobLost(digest, "it is not kept here") from None

    def keep(self, digests: set[str]) -> None:
        self._blobs = {name: payload for name, payload in self._blobs.items() if name in digests}

    def drop(self, digests: set[str]) -> None:
        self.keep(self._blobs.keys() - digests)

    def check(self) -> None:
        pass
