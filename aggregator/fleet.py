"""The devices, as the runner speaks to them: messages and blobs over a link."""

from collections.abc import Mapping

from wire.codec import encode
from wire.links.port import Link
from wire.messages import AggregatorStatus, Message
from wire.topics import Topics


class Fleet:
    """Publishes to devices. Blobs are published once, retained, for as long as devices need them."""

    def __init__(self, link: Link, topics: Topics, boot_id: str) -> None:
        self.link, self.topics, self._boot_id = link, topics, boot_id
        self._offered: dict[str, bytes] = {}
        link.subscribe(*topics.from_devices)

    def announce(self, run_id: str, online: bool = True) -> None:
        """Publish the aggregator's status; a boot id that devices do not know makes them check in."""
        self.link.publish(self.topics.aggregator, encode(AggregatorStatus(online, self._boot_id, run_id)), retain=True)

    def tell(self, device_id: str, message: Message, kind: str) -> None:
        """Publish a message on a device's plan or reply topic."""
        self.link.publish(self.topics.device(device_id, kind), encode(message))  # type: ignore[arg-type]

    def offer(self, blobs: Mapping[str, bytes]) -> None:
        """Publish blobs that are not yet on offer."""
        for digest, payload in blobs.items():
            if digest not in self._offered:
                self._offered[digest] = payload
                self.link.publish(self.topics.blob(digest), payload, retain=True)

    def offer_again(self, digest: str | None = None) -> bool:
        """Publish one offered blob again, or all (a restarted broker lost them). False if it is not on offer."""
        if digest is not None and digest not in self._offered:
            return False
        for name in self._offered if digest is None else (digest,):
            self.link.publish(self.topics.blob(name), self._offered[name], retain=True)
        return True

    def withdraw_all_but(self, digests: set[str]) -> None:
        """Clear the retained blobs that no device needs any more."""
        for digest in self._offered.keys() - digests:
            self.link.publish(self.topics.blob(digest), b"", retain=True)
            del self._offered[digest]
