"""Publishing to devices over a link: signed messages, and blobs by their digest."""

from collections.abc import Iterable
from functools import partial
from itertools import chain

from aggregator.ports import Blobs
from aggregator.transfer.offered import Offered
from wire.codec import encode
from wire.identity.signed import Sign
from wire.links.port import Link
from wire.messages import AggregatorStatus, Plan, Release, Reply, Want
from wire.pieces import WHOLE_BYTES, cut
from wire.secret.messages import Shares, SumRequest
from wire.secret.payloads import encode_request
from wire.topics import RETAINED_OF_DEVICE, Kind, ToDevice, Topics


class FleetLink:
    """Link to the devices of a fleet.

    A blob is published once, and retained by the broker while devices need it: it is on offer.
    """

    def __init__(self, link: Link, topics: Topics, boot_id: str, sign: Sign = encode) -> None:
        self.link, self.topics, self.boot_id, self.sign = link, topics, boot_id, sign
        self._offered: dict[str, Offered] = {}
        self._needed: dict[object, set[str]] = {}
        self.announced = b""
        """Last status that was published."""
        link.subscribe(*topics.from_devices, topics.of_kind("answer"), topics.aggregator)

    def rename(self) -> None:
        """Take another boot id, so that every device checks in again."""
        first, _, count = self.boot_id.partition(".")
        self.boot_id = f"{first}.{int(count or 0) + 1}"

    def announce(
        self, epoch: int, at_s: float, run_id: str, online: bool = True, paused: str = ""
    ) -> None:
        """Publish the aggregator's status; devices check in if they do not know its boot id."""
        status = AggregatorStatus(online, self.boot_id, epoch, at_s, run_id, paused[:1000])
        self.announced = self.sign(status)
        self.link.publish(self.topics.aggregator, self.announced, retain=True)

    def send(self, message: Plan | Release | Want | Reply) -> None:
        """Publish a message to its device; a release is retained."""
        kind: ToDevice = "reply"
        match message:
            case Plan():
                kind = "plan"
            case Release():
                kind = "release"
            case Want():
                kind = "want"
        topic = self.topics.device(message.device_id, kind)
        self.link.publish(topic, self.sign(message), retain=kind == "release")

    def ask(self, helper: str, request: SumRequest, shares: Shares) -> None:
        """Publish a request to a helper.

        Raises:
            LimitExceeded: the broker takes only smaller packets.
        """
        payload = encode_request(request, shares, self.sign)
        self.link.publish(self.topics.helper(helper, "request"), payload)

    def clear(self, device_id: str, kinds: Iterable[Kind] = RETAINED_OF_DEVICE) -> None:
        """Clear the messages that the broker retains on topics of a device."""
        for kind in kinds:
            self.link.publish(self.topics.of_kind(kind, device_id), b"", retain=True)

    def offer(self, owner: object, digests: Iterable[str], blobs: Blobs) -> None:
        """Publish these blobs, retained, unless they are on offer already.

        A blob stays on offer while one of the owners that offered it needs it.

        Raises:
            LimitExceeded: the broker takes only smaller packets, even in pieces.
        """
        for digest in sorted(digests):
            if digest not in self._offered or not self._fits(digest):
                self._cut(digest, blobs)
            self._needed.setdefault(owner, set()).add(digest)

    def offered(self, digest: str) -> bytes:
        """Return the bytes of a blob that is on offer.

        Raises:
            KeyError: it is not on offer.
            ShoalError: it cannot be read.
        """
        return self._offered[digest].payload()

    def offer_again(self, digest: str | None = None) -> bool:
        """Publish a blob or piece on offer again, or all blobs; return False if it is not on offer.

        `digest`: of the blob or piece; None for all blobs. A broker that was restarted may have
        lost them, or may take only smaller packets now. For a large blob, the list of its pieces is
        published.

        Raises:
            ShoalError: a blob cannot be read, or the broker takes only smaller packets.
        """
        for name in [*self._offered] if digest is None else {digest} & self._offered.keys():
            if self._fits(name):
                self._publish(self._offered[name])
            else:
                self._cut(name, self._offered[name].blobs)
        if digest is None or digest in self._offered:
            return True
        for offered in self._offered.values():
            if offered.pieces is not None and digest in offered.pieces.pieces:
                self.link.publish(self.topics.blob(digest), offered.piece(digest), retain=True)
                return True
        return False

    def withdraw_all_but(self, owner: object, digests: set[str]) -> None:
        """Clear the retained blobs of an owner except `digests`, unless other owners need them."""
        self._needed[owner] = set(digests)
        over = {
            digest: self._offered.pop(digest)
            for digest in self._offered.keys() - set().union(*self._needed.values())
        }
        for name in (
            {*chain(*(o.names for o in over.values()))}
            - {*chain(*(o.names for o in self._offered.values()))}
            if over
            else ()
        ):
            self.link.publish(self.topics.blob(name), b"", retain=True)

    def _fits(self, digest: str) -> bool:
        """Return True if the broker takes the parts of a blob on offer."""
        return self._offered[digest].largest <= self.link.limit.payload_bytes

    def _cut(self, digest: str, blobs: Blobs) -> None:
        """Publish a blob, whole or in pieces, in place of its earlier pieces."""
        payload, limit = blobs.get(digest), self.link.limit
        is_small = len(payload) <= min(WHOLE_BYTES, limit.payload_bytes)
        pieces = None if is_small else cut(len(payload), partial(_part, payload), limit)
        offered, before = (
            Offered(digest, pieces, payload if is_small else b"", blobs),
            self._offered.get(digest),
        )
        self._offered[digest] = offered
        current = {*chain(*(each.names for each in self._offered.values()))} if before else set()
        for name in sorted((before.names if before else set()) - current):
            self.link.publish(self.topics.blob(name), b"", retain=True)
        self._publish(offered)
        for piece in dict.fromkeys(offered.pieces.pieces if offered.pieces else ()):
            self.link.publish(self.topics.blob(piece), offered.piece(piece), retain=True)

    def _publish(self, offered: Offered) -> None:
        """Publish the message that is retained under a blob's digest.

        It is the bytes of a small blob, or the list of the pieces of a large one.
        """
        payload = offered.payload() if offered.pieces is None else self.sign(offered.pieces)
        self.link.publish(self.topics.blob(offered.digest), payload, retain=True)


def _part(payload: bytes, at: int, size: int) -> bytes:
    return payload[at : at + size]
