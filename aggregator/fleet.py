"""What the aggregator publishes to its devices over a link: signed messages, and blobs by their digest."""

from collections.abc import Callable, Iterable

from wire.codec import encode
from wire.links.port import Link
from wire.messages import AggregatorStatus, Plan, Release, Reply
from wire.signed import Sign
from wire.topics import RETAINED_OF_DEVICE, Topics


class Fleet:
    """Publishes to devices. A blob is published once and retained by the broker for as long as devices need it: it is on offer."""

    def __init__(self, link: Link, topics: Topics, boot_id: str, sign: Sign = encode) -> None:
        self.link, self.topics, self.boot_id, self._sign = link, topics, boot_id, sign
        self._offered: dict[str, bytes] = {}
        self._needed: dict[object, set[str]] = {}
        self.announced = b""
        """The last status that was published."""
        link.subscribe(*topics.from_devices, topics.aggregator)

    def sign_with(self, sign: Sign) -> None:
        """Sign what is published from now on with another key, or with a voucher that holds longer."""
        self._sign = sign

    def rename(self) -> None:
        """Take another boot id, so that every device checks in again."""
        first, _, count = self.boot_id.partition(".")
        self.boot_id = f"{first}.{int(count or 0) + 1}"

    def announce(self, epoch: int, at_s: float, run_id: str, online: bool = True, paused: str = "") -> None:
        """Publish the aggregator's status; a boot id that devices do not know makes them check in."""
        status = AggregatorStatus(online, self.boot_id, epoch, at_s, run_id, paused[:1000])
        self.announced = self._sign(status)
        self.link.publish(self.topics.aggregator, self.announced, retain=True)

    def send_plan(self, plan: Plan) -> None:
        """Publish a device's plan."""
        self.link.publish(self.topics.device(plan.device_id, "plan"), self._sign(plan))

    def send_release(self, release: Release) -> None:
        """Publish a device's release, retained."""
        self.link.publish(self.topics.device(release.device_id, "release"), self._sign(release), retain=True)

    def clear_release(self, device_id: str) -> None:
        """Clear what is retained as a device's release."""
        self.link.publish(self.topics.device(device_id, "release"), b"", retain=True)

    def reply(self, reply: Reply) -> None:
        """Publish a reply to a device."""
        self.link.publish(self.topics.device(reply.device_id, "reply"), self._sign(reply))

    def clear(self, device_id: str) -> None:
        """Take away what the broker retains of a device."""
        for kind in RETAINED_OF_DEVICE:
            self.link.publish(self.topics.of_kind(kind, device_id), b"", retain=True)

    def offer(self, owner: object, digests: Iterable[str], read: Callable[[str], bytes]) -> None:
        """Publish these blobs, retained, unless they are on offer already. Each stays as long as an owner needs it who offered it."""
        for digest in sorted(digests):
            if digest not in self._offered:
                self._offered[digest] = read(digest)
                self.link.publish(self.topics.blob(digest), self._offered[digest], retain=True)
            self._needed.setdefault(owner, set()).add(digest)

    def offered(self, digest: str) -> bytes:
        """The bytes of a blob that is on offer.

        Raises:
            KeyError: it is not.
        """
        return self._offered[digest]

    def offer_again(self, digest: str | None = None) -> bool:
        """Publish the blob of this digest again, or all that are on offer: a broker that was restarted may have lost them.

        Returns whether the blob is on offer.
        """
        if digest is not None and digest not in self._offered:
            return False
        for name in self._offered if digest is None else (digest,):
            self.link.publish(self.topics.blob(name), self._offered[name], retain=True)
        return True

    def withdraw_all_but(self, owner: object, digests: set[str]) -> None:
        """Clear every retained blob that its owner needs no more, but for these, and that nobody else needs."""
        self._needed[owner] = set(digests)
        for digest in self._offered.keys() - set().union(*self._needed.values()):
            self.link.publish(self.topics.blob(digest), b"", retain=True)
            del self._offered[digest]
