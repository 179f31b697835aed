"""Download of the blobs that a device needs, whole or in pieces."""

from collections.abc import Callable
from itertools import islice

from edge_client.core.offers import open_offer
from edge_client.core.session import Session
from edge_client.models.current import CurrentModel
from edge_client.storage.state import BLOBS, PART, DeviceState
from host.part_file import PartFile
from wire.codec import digest
from wire.errors import LimitExceeded, Malformed, WireError
from wire.links.port import Link
from wire.messages import Choose, Pieces, Plan, Respond
from wire.pieces import WINDOW
from wire.topics import Topics


def blobs_of(plan: Plan) -> set[str]:
    """Return the digests of all blobs that a plan needs."""
    needed = {
        plan.bundle,
        plan.model,
        *(verb.inputs for verb in plan.verbs if isinstance(verb, Respond)),
    }
    return needed | {
        model for verb in plan.verbs if isinstance(verb, Choose) for model in verb.models
    }


def needed(session: Session, model: CurrentModel) -> set[str]:
    """Return the digests of the blobs that the device must have and an aggregator can send.

    They belong to the model in use, the offered model and the current plan.
    """
    current = model.current
    names = {current.bundle, current.model} if current is not None else set()
    if (offer := open_offer(session, current)) is not None:
        names |= {offer.bundle, offer.model}
    return names | (
        blobs_of(session.plan) if session.plan is not None and session.stage == "working" else set()
    )


class Fetching:
    """Subscriber to missing blobs, which stores them as they come.

    `wanted` has the digests of the missing blobs. In place of a large blob comes a list of its
    pieces. The device then subscribes to the missing pieces, a few at a time, so that a lost
    connection costs only these. Stored pieces survive a restart.
    """

    def __init__(
        self,
        topics: Topics,
        link: Link,
        state: DeviceState,
        open_pieces: Callable[[bytes], Pieces],
        most_bytes: int,
    ) -> None:
        """Start without missing blobs.

        Args:
            topics: topics of the fleet.
            link: connection to the broker.
            state: folder for blobs and pieces.
            open_pieces: reads the list of pieces that came in place of a blob; it raises
                `WireError` if the list is not trustworthy.
            most_bytes: size of the largest blob that is accepted.
        """
        self._most_bytes = most_bytes
        self._topics, self._link, self._state, self._open_pieces = topics, link, state, open_pieces
        self.wanted: set[str] = set()
        self._parts: dict[str, PartFile] = {}
        """Stored pieces by blob, for blobs that come in pieces."""
        self._awaited: dict[str, tuple[str, ...]] = {}
        """Blobs by piece, for each piece that is subscribed to."""

    @property
    def unknown(self) -> set[str]:
        """Missing blobs of which nothing has come yet."""
        return self.wanted - self._parts.keys()

    @property
    def unanswered(self) -> set[str]:
        """Digests to request from an aggregator after a silence: missing blobs and expected pieces.

        It also subscribes to the blobs in pieces again, since a blob may have been cut anew, and
        then the new list of its pieces is needed.
        """
        if self._parts:
            self._link.subscribe(*map(self._topics.blob, sorted(self._parts)))
        return self.wanted | self._awaited.keys()

    def need(self, names: set[str]) -> bool:
        """Wait for the blobs among `names` that are not stored; return True if some are new.

        Blobs that are not among `names` are no longer waited for.
        """
        missing = {name for name in names if not self._state.files.size(BLOBS + name)}
        over, new = self.wanted - missing, missing - self.wanted
        self.wanted = missing
        if over:
            for name in over:
                self._parts.pop(name, None)
            self._link.unsubscribe(*map(self._topics.blob, sorted(over)))
            self._await_pieces()
        if new:
            self._link.subscribe(*map(self._topics.blob, sorted(new)))
        return bool(new)

    def take(self, name: str, payload: bytes, keep: set[str]) -> bool:
        """Store a blob, a piece or a list of pieces; return True if the device waited for it.

        On a full disk, all blobs except those in `keep` are removed first.

        Raises:
            Malformed: its bytes have another hash.
            LimitExceeded: the blob is larger than this device accepts.
            OSError: it cannot be stored. The device still waits for it.
        """
        if name not in self.wanted and name not in self._awaited:
            return False
        if len(payload) > self._most_bytes:
            raise LimitExceeded(
                f"blob {name}: {len(payload)} bytes, at most {self._most_bytes} are accepted"
            )
        if digest(payload) == name:
            try:
                self._store(name, payload)
            except OSError:
                self._state.keep_blobs(keep)
                self._store(name, payload)
            return True
        if name in self._awaited:
            raise Malformed(f"piece {name}: its {len(payload)} bytes have another hash")
        self._on_pieces(name, payload)
        return True

    def _on_pieces(self, name: str, payload: bytes) -> None:
        try:
            pieces = self._open_pieces(payload)
        except LimitExceeded:
            raise
        except WireError as error:
            raise Malformed(
                f"blob {name}: its {len(payload)} bytes have another hash, and list no pieces: "
                f"{error}"
            ) from None
        if pieces.digest != name:
            raise Malformed(f"blob {name}: the list of pieces is of another blob, {pieces.digest}")
        self._link.unsubscribe(self._topics.blob(name))
        if name not in self._parts or self._parts[name].pieces != pieces:
            self._parts[name] = self._state.files.part(f"{BLOBS}{name}{PART}", pieces)
            self._go_on(name)

    def _store(self, name: str, payload: bytes) -> None:
        blobs = self._awaited.get(name, ())
        for part in map(self._parts.__getitem__, blobs):
            for index in [index for index in part.missing if part.pieces.pieces[index] == name]:
                part.put(index, payload)
        if name in self.wanted:
            self._state.put_blob(name, payload)
            self._arrived(name)
        for blob in blobs:
            self._go_on(blob)

    def _go_on(self, blob: str) -> None:
        """Accept the blob if its pieces are complete, and wait for the next pieces.

        If a complete blob does not match its hash, it is fetched anew.
        """
        part = self._parts.get(blob)
        if part is not None and not part.missing:
            if part.is_whole():
                self._state.files.finish(part, BLOBS + blob)
                self._arrived(blob)
            else:
                self._state.files.delete(f"{BLOBS}{blob}{PART}")
                del self._parts[blob]
                self._link.subscribe(self._topics.blob(blob))
        self._await_pieces()

    def _arrived(self, name: str) -> None:
        self.wanted.discard(name)
        self._parts.pop(name, None)
        self._link.unsubscribe(self._topics.blob(name))

    def _await_pieces(self) -> None:
        """Subscribe to the next missing pieces and unsubscribe from the others."""
        awaited: dict[str, tuple[str, ...]] = {}
        for blob in sorted(self._parts):
            part = self._parts[blob]
            for index in islice(part.missing, WINDOW):
                name = part.pieces.pieces[index]
                if (len(awaited) < WINDOW or name in awaited) and blob not in awaited.get(name, ()):
                    awaited[name] = (*awaited.get(name, ()), blob)
        over, new = (
            self._awaited.keys() - awaited.keys() - self.unknown,
            awaited.keys() - self._awaited.keys() - self.unknown,
        )
        self._awaited = awaited
        if over:
            self._link.unsubscribe(*map(self._topics.blob, sorted(over)))
        if new:
            self._link.subscribe(*map(self._topics.blob, sorted(new)))
