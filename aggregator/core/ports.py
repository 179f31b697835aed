"""What the runner asks of its surroundings."""

from collections.abc import Callable, Sequence
from typing import Protocol

from aggregator.core.record import RoundRecord
from aggregator.core.state import Event, RunState
from wire.errors import ShoalError

Clock = Callable[[], float]
"""Seconds now, never less than a call before said; a service's are those of the Unix epoch, a
simulation's those since its beginning."""


class StorageFailed(ShoalError):
    """Something could not be written or read: the disk is full, or broken, or the database is not
    there."""


class BlobLost(ShoalError):
    """A blob is not kept here, or its bytes are not those that were written."""

    def __init__(self, digest: str, reason: str) -> None:
        super().__init__(f"blob {digest[:12]}: {reason}")
        self.digest = digest


class Store(Protocol):
    """Keeps one run: its events, its last snapshot, its records. What a method wrote is safe when
    it returns."""

    def commit(
        self,
        events: Sequence[Event],
        records: Sequence[RoundRecord] = (),
        snapshot: RunState | None = None,
    ) -> None:
        """Add events to the run's log and records of rounds to the others, in place of earlier ones
        of the same rounds: all, or nothing. `snapshot` is the state after these events: `load`
        begins from there, and the events up to there are forgotten.

        Raises:
            StorageFailed: nothing was written, as far as can be told: where an answer was lost, all
            of it may be. Nothing more is written
                before `load` has told.
        """

    def load(self) -> RunState | None:
        """The state after every event in the log; None before the first.

        Raises:
            StorageFailed: it cannot be read.
        """

    def rounds(self, after: int = 0, until: int | None = None) -> list[RoundRecord]:
        """The records of rounds with a greater number than `after` and at most `until`, where that
        is given, by round.

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
        """Keep bytes; all are safe when this returns. Returns their digests.

        Raises:
            StorageFailed: not all are kept.
        """

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
        """Forget these blobs, those that were set aside as damaged as well.

        `own`: nobody else can need them, so that they go even if another service has the fleet.

        Raises:
            StorageFailed: one may still be here.
        """
