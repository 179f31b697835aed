"""The blobs that devices may fetch, those that are still needed, and one that is on offer."""

from dataclasses import dataclass

from aggregator.core.ports import BlobLost, Blobs
from aggregator.core.state import RunState
from wire.codec import digest as digest_of
from wire.messages import Pieces
from wire.pieces import place


@dataclass(frozen=True)
class Offered:
    """A blob, whose bytes are held if it is small. A large one has `pieces`, and is read again when
    it is needed again."""

    digest: str
    pieces: Pieces | None
    _held: bytes
    _blobs: Blobs

    @property
    def names(self) -> set[str]:
        """The digests under which something of it is retained."""
        return {self.digest, *(self.pieces.pieces if self.pieces is not None else ())}

    def payload(self) -> bytes:
        """All its bytes.

        Raises:
            BlobLost, StorageFailed: it cannot be read.
        """
        return self._held if self.pieces is None else self._blobs.get(self.digest)

    def piece(self, name: str) -> bytes:
        """One piece.

        Raises:
            BlobLost, StorageFailed: it cannot be read.
        """
        assert self.pieces is not None
        payload = self._blobs.get(self.digest, *place(self.pieces, self.pieces.pieces.index(name)))
        if digest_of(payload) != name:
            raise BlobLost(self.digest, "its bytes are not those that were written")
        return payload


def needed(state: RunState) -> set[str]:
    """The digests of the blobs that a run's state names, and that are of use yet: the updates of a
    run that is over are not."""
    earlier = {
        digest for version in state.history for digest in (*version.models.values(), version.memory)
    }
    counted = state.received.values() if state.phase != "finished" else ()
    updates = {received.blob for received in counted} | {
        told.blob for told in state.inputs.values()
    }
    return offered(state) | earlier | {state.memory} | updates


def offered(state: RunState) -> set[str]:
    """The digests of the blobs that devices may fetch in this state."""
    working = {
        flight.model
        for flight in (*state.flights.values(), *state.placing.values(), *state.closings.values())
    }
    return {state.settings.bundle, *state.models.values()} | working
