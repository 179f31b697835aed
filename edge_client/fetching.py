"""The blobs that a device waits for."""

from edge_client.core.offers import open_offer
from edge_client.core.ports import DeviceState
from edge_client.core.session import Session
from edge_client.current import CurrentModel
from wire.codec import digest
from wire.errors import Malformed
from wire.links.port import Link
from wire.messages import Choose, Plan, Respond
from wire.topics import Topics


def blobs_of(plan: Plan) -> set[str]:
    """The digests of all that a plan needs."""
    needed = {plan.bundle, plan.model, *(verb.inputs for verb in plan.verbs if isinstance(verb, Respond))}
    return needed | {model for verb in plan.verbs if isinstance(verb, Choose) for model in verb.models}


def needed(session: Session, model: CurrentModel) -> set[str]:
    """The blobs that have to be here and that an aggregator has: of the model in use, of the one that is offered, and of the plan."""
    names = set(model.fetched)
    if (offer := open_offer(session, model.current)) is not None:
        names |= {offer.bundle, offer.model}
    return names | (blobs_of(session.plan) if session.plan is not None and session.stage == "working" else set())


class Fetching:
    """Subscribes to what is missing, and stores what comes. `wanted` are the digests that are missing."""

    def __init__(self, topics: Topics, link: Link, state: DeviceState) -> None:
        self._topics, self._link, self._state = topics, link, state
        self.wanted: set[str] = set()

    def need(self, names: set[str]) -> bool:
        """Wait for those of these blobs that are not stored, and for no others; whether that are more than before."""
        missing = {name for name in names if not self._state.has_blob(name)}
        over, new = self.wanted - missing, missing - self.wanted
        self.wanted = missing
        if over:
            self._link.unsubscribe(*map(self._topics.blob, sorted(over)))
        if new:
            self._link.subscribe(*map(self._topics.blob, sorted(new)))
        return bool(new)

    def take(self, name: str, payload: bytes, keep: set[str]) -> None:
        """Store a blob that came. On a full disk, all but the blobs to `keep` are removed first.

        Raises:
            Malformed: its bytes have another hash.
            OSError: it cannot be stored. It is still wanted.
        """
        if name not in self.wanted:
            return
        if digest(payload) != name:
            raise Malformed(f"blob {name}: its {len(payload)} bytes have another hash")
        try:
            self._state.put_blob(name, payload)
        except OSError:
            self._state.keep_blobs(keep)
            self._state.put_blob(name, payload)
        self.wanted.discard(name)
        self._link.unsubscribe(self._topics.blob(name))

    def has(self, names: set[str]) -> bool:
        """Whether none of these blobs is waited for."""
        return not self.wanted & names
