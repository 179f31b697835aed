"""A store and a blob store in memory: for simulation, and the reference that the durable ones are
tested against."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from aggregator.core.ports import BlobLost
from aggregator.core.record import RoundRecord
from aggregator.core.round.machine import step
from aggregator.core.state import Event, RunState
from wire.codec import digest


@dataclass
class MemoryStore:
    """An `aggregator.core.ports.Store` that lives as long as the process."""

    _events: list[Event] = field(default_factory=list)
    _snapshot: RunState | None = None
    _rounds: dict[int, RoundRecord] = field(default_factory=dict)

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


@dataclass
class MemoryBlobs:
    """An `aggregator.core.ports.Blobs` in a dictionary."""

    _blobs: dict[str, bytes] = field(default_factory=dict)

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

    def drop(self, digests: set[str], own: bool = False) -> None:
        self.keep(self._blobs.keys() - digests)
