"""What the runner asks of its surroundings."""

from collections.abc import Callable
from typing import Protocol

from aggregator.core.record import RoundRecord
from aggregator.core.state import Event, RunState

Clock = Callable[[], float]
"""Seconds now; a service's are those of the Unix epoch, a simulation's those since its beginning."""


class Store(Protocol):
    """Keeps one run: its events, its last snapshot, its records. What a method wrote is safe when it returns."""

    def append(self, event: Event) -> None:
        """Add an event to the run's log."""

    def load(self) -> RunState | None:
        """The state after every event in the log; None before the first."""

    def snapshot(self, state: RunState) -> None:
        """Remember the state, so that `load` need not replay what came before."""

    def put_round(self, record: RoundRecord) -> None:
        """Keep a round's record, in place of an earlier one of the same round."""

    def rounds(self) -> list[RoundRecord]:
        """All records, by round."""


class Blobs(Protocol):
    """Keeps bytes by their SHA-256."""

    def put(self, payload: bytes) -> str:
        """Keep bytes; they are safe when this returns. Returns their digest."""

    def get(self, digest: str) -> bytes:
        """The bytes.

        Raises:
            KeyError: not kept here.
        """

    def keep(self, digests: set[str]) -> None:
        """Forget every blob but these."""
