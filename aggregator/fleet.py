"""What the aggregator publishes to its devices over a link: messages, and blobs by their digest."""

from collections.abc import Mapping

from wire.codec import encode
from wire.links.port import Link
from wire.messages import AggregatorStatus, Message
from wire.topics import Topics


class Fleet:
    """Publishes to devices. A blob is published once and retained by the broker for as long as devices need it: it is on offer."""

    def __init__(self, link: Link, topics: Topics, boot_id: str) -> None:
        self.link, self.topics, self._boot_id = link, topics, boot_id
        self._offered: dict[str, bytes] = {}
        link.subscribe(*topics.from_devices)

    def announce(self, run_id: str, online: bool = True) -> None:
        """Publish the aggregator's status; a boot id that devices do not know makes them check in."""
        self.link.publish(self.topics.aggregator, encode(AggregatorStatus(online, self._boot_id, run_id)), retain=True)

    def send(self, device_id: str, message: Message, kind: str) -> None:
        """Publish a message on a device's plan or reply topic."""
        self.link.publish(self.topics.device(device_id, kind), encode(message))  # type: ignore[arg-type]

    def offer(self, blobs: Mapping[str, bytes]) -> None:
        """Publish blobs, retained, unless they are on offer already; by digest."""
        for digest, payload in blobs.items():
            if digest not in self._offered:
                self._offered[digest] = payload
                self.link.publish(self.topics.blob(digest), payload, retain=True)

    def offer_again(self, digest: str | None = None) -> bool:
        """Publish the blob of this digest again, or all that are on offer: a broker that was restarted may have lost them.

        Returns whether the blob is on offer.
        """
        if digest is not None and digest not in self._offered:
            return False
        for name in self._offered if digest is None else (digest,):
            self.link.publish(self.topics.blob(name), self._offered[name], retain=True)
        return True

    def withdraw_all_but(self, digests: set[str]) -> None:
        """Clear every retained blob but these."""
        for digest in self._offered.keys() - digests:
            self.link.publish(self.topics.blob(digest), b"", retain=True)
            del self._offered[digest]
