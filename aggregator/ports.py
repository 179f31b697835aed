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
    """Keeps a fleet, and the records of its campaigns' rounds. What a method wrote is safe when it
    returns."""

    def commit(
        self,
        before: Fleet,
        after: Fleet,
        changed: Set[str],
        events: Sequence[Event] = (),
        records: Sequence[tuple[str, RoundRecord]] = (),
    ) -> None:
        """Write what has changed between two fleets, the events behind it, and records of rounds
        with the names of their campaigns, in place of earlier ones of the same rounds: all, or
        nothing. `changed`: devices whose record, member or update is another, or is gone.

        Raises:
            StorageFailed: nothing was written, as far as can be told: where an answer was lost, all
            of it may be. Nothing more is written before `load` has told.
        """

    def load(self) -> Fleet:
        """Return the fleet; an empty one before the first commit.

        Raises:
            StorageFailed: it cannot be read.
        """

    def rounds(self, campaign: str, after: int = 0, until: int | None = None) -> list[RoundRecord]:
        """Return the records of a campaign's rounds with a greater number than `after` and at most
        `until`, where that is given, by round.

        Raises:
            StorageFailed: they cannot be read.
        """

    def views(self, campaign: str) -> set[str]:
        """Return the digests of the views in the records of a campaign's rounds.

        Raises:
            StorageFailed: they cannot be read.
        """

    def check(self) -> None:
        """Write something that means nothing.

        Raises:
            StorageFailed: it cannot be written.
        """


class Blobs(Protocol):
    """Keeps bytes by their SHA-256."""

    def put(self, *payloads: bytes) -> list[str]:
        """Store of bytes by their SHA-256."""

    def get(self, digest: str, offset: int = 0, size: int | None = None) -> bytes:
        """Return the bytes, which have this hash; with a size, so many of them from an offset on,
        which are not compared with the hash.

        Raises:
            BlobLost: not kept here, or damaged; a damaged blob is set aside.
            StorageFailed: it cannot be read.
        """

    def keep(self, digests: set[str]) -> None:
        """Forget every blob but these."""

    def drop(self, digests: set[str], own: bool = False) -> None:
        """Delete every blob but these."""
