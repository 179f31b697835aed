"""Fleet and blobs in memory, for simulation and as the reference in tests of the durable stores."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from aggregator.fleet.events import Event
from aggregator.fleet.records import Fleet
from aggregator.ports import BlobLost
from aggregator.view.round_record import RoundRecord
from wire.codec import digest


@dataclass
class MemoryStore:
    """Store of a fleet (`aggregator.ports.Store`) that lives as long as the process."""

    _fleet: Fleet = field(default_factory=Fleet)
    _rounds: dict[str, dict[int, RoundRecord]] = field(default_factory=dict)

    def commit(
        self,
        before: Fleet,
        after: Fleet,
        changed: Set[str],
        events: Sequence[Event] = (),
        records: Sequence[tuple[str, RoundRecord]] = (),
    ) -> None:
        """Replace the fleet, and the records of these rounds."""
        self._fleet = after
        for campaign, record in records:
            self._rounds.setdefault(campaign, {})[record.round] = record

    def load(self) -> Fleet:
        """Return the fleet."""
        return self._fleet

    def rounds(self, campaign: str, after: int = 0, until: int | None = None) -> list[RoundRecord]:
        """Return the records of a campaign's rounds, by round.

        They are the rounds after `after`, up to and including `until` (None: up to the last).
        """
        rounds = self._rounds.get(campaign, {})
        return [
            rounds[number]
            for number in sorted(rounds)
            if after < number and (until is None or number <= until)
        ]

    def views(self, campaign: str) -> set[str]:
        """Return the digests of the views in the records of a campaign's rounds."""
        return {record.views for record in self._rounds.get(campaign, {}).values()} - {""}

    def check(self) -> None:
        """Do nothing: memory can always be written."""


@dataclass
class MemoryBlobs:
    """Store of blobs (`aggregator.ports.Blobs`) in a dictionary."""

    _blobs: dict[str, bytes] = field(default_factory=dict)

    def put(self, *payloads: bytes) -> list[str]:
        names = [digest(payload) for payload in payloads]
        self._blobs |= dict(zip(names, payloads, strict=True))
        return names

    def get(self, digest: str, offset: int = 0, size: int | None = None) -> bytes:
        try:
            return self._blobs[digest][offset : None if size is None else offset + size]
        except KeyError:
            raise BlobLost(digest, "missing") from None

    def keep(self, digests: set[str]) -> None:
        self._blobs = {name: payload for name, payload in self._blobs.items() if name in digests}

    def drop(self, digests: set[str], own: bool = False) -> None:
        self.keep(self._blobs.keys() - digests)
