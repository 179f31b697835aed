"""Interfaces of the runner to its surroundings: clock, fleet store, blob store."""

from collections.abc import Callable, Sequence, Set
from typing import Protocol

from aggregator.fleet.events import Event
from aggregator.fleet.records import Fleet
from aggregator.view.round_record import RoundRecord
from wire.errors import ShoalError

Clock = Callable[[], float]
"""Returns the present time (s), which never decreases.

A service's clock counts from the Unix epoch, a simulation's from its beginning.
"""


class StorageFailed(ShoalError):
    """Data could not be written or read: full or broken disk, or unreachable database."""


class BlobLost(ShoalError):
    """A blob is missing, or its bytes differ from those that were written."""

    def __init__(self, digest: str, reason: str) -> None:
        super().__init__(f"blob {digest[:12]}: {reason}")
        self.digest = digest


class Store(Protocol):
    """Store of a fleet and of its campaigns' round records. Writes are durable on return."""

    def commit(
        self,
        before: Fleet,
        after: Fleet,
        changed: Set[str],
        events: Sequence[Event] = (),
        records: Sequence[tuple[str, RoundRecord]] = (),
    ) -> None:
        """Write the changes between two fleets, their events and records of rounds: all or nothing.

        `changed`: devices whose record, member or update differs or is gone. `events`: the events
        that led from `before` to `after`. `records`: names of campaigns with records of rounds,
        which replace earlier records of the same rounds.

        Raises:
            StorageFailed: the store does not know that anything was written. If an answer was lost,
            everything may have been written. The store refuses further commits until `load` has
            read its contents.
        """

    def load(self) -> Fleet:
        """Return the fleet, or an empty one before the first commit.

        Raises:
            StorageFailed: the fleet cannot be read.
        """

    def rounds(self, campaign: str, after: int = 0, until: int | None = None) -> list[RoundRecord]:
        """Return the records of a campaign's rounds, by round.

        They are the rounds after `after`, up to and including `until` (None: up to the last).

        Raises:
            StorageFailed: they cannot be read.
        """

    def views(self, campaign: str) -> set[str]:
        """Return the digests of the views in the records of a campaign's rounds.

        Raises:
            StorageFailed: they cannot be read.
        """

    def check(self) -> None:
        """Write a meaningless record, to test that the store can be written.

        Raises:
            StorageFailed: the store cannot be written.
        """


class Blobs(Protocol):
    """Store of bytes by their SHA-256."""

    def put(self, *payloads: bytes) -> list[str]:
        """Store bytes, durable on return, and return their digests.

        Raises:
            StorageFailed: not all are stored.
        """

    def get(self, digest: str, offset: int = 0, size: int | None = None) -> bytes:
        """Return the bytes of a blob, after a check of their hash.

        With `size`, return that many bytes from `offset` on; these are not checked.

        Raises:
            BlobLost: the blob is missing or damaged; a damaged blob is set aside.
            StorageFailed: it cannot be read.
        """

    def keep(self, digests: set[str]) -> None:
        """Delete every blob but these."""

    def drop(self, digests: set[str], own: bool = False) -> None:
        """Delete these blobs, and their damaged copies that were set aside.

        `own`: True if no other service can need them; they are then deleted even if another one has
        the fleet's lease.

        Raises:
            StorageFailed: one of them may still be here.
        """
