"""A store and a blob store in memory: for simulation, and the reference that the durable ones are tested against."""

from aggregator.core.record import RoundRecord
from aggregator.core.round import step
from aggregator.core.state import Event, RunState
from wire.codec import digest


class MemoryStore:
    """An `aggregator.core.ports.Store` that lives as long as the process."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._snapshot: tuple[int, RunState | None] = (0, None)
        self._rounds: dict[int, RoundRecord] = {}

    def append(self, event: Event) -> None:
        self._events.append(event)

    def load(self) -> RunState | None:
        at, state = self._snapshot
        for event in self._events[at:]:
            state, _ = step(state, event)
        return state

    def snapshot(self, state: RunState) -> None:
        self._snapshot = (0, state)
        self._events.clear()

    def put_round(self, record: RoundRecord) -> None:
        self._rounds[record.round] = record

    def rounds(self) -> list[RoundRecord]:
        return [self._rounds[number] for number in sorted(self._rounds)]


class MemoryBlobs:
    """An `aggregator.core.ports.Blobs` in a dictionary."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    def put(self, payload: bytes) -> str:
        name = digest(payload)
        self._blobs[name] = payload
        return name

    def get(self, digest: str) -> bytes:
        return self._blobs[digest]

    def keep(self, digests: set[str]) -> None:
        self._blobs = {name: payload for name, payload in self._blobs.items() if name in digests}
