"""Contract of every link; subclassed once per adapter and broker."""

import time
from collections.abc import Callable

import pytest

from wire.links.port import Delivery, Link, LinkUp, Will

Connect = Callable[..., Link]


def deliveries(link: Link, count: int, patience_s: float = 10.0) -> list[Delivery]:
    """The next `count` deliveries."""
    found: list[Delivery] = []
    end_s = time.monotonic() + patience_s
    while len(found) < count and time.monotonic() < end_s:
        event = link.receive(timeout_s=0.1)
        if isinstance(event, Delivery):
            found.append(event)
    return found


def settle(*links: Link) -> None:
    """Read what is pending, so that subscriptions are known to be in place."""
    for link in links:
        while link.receive(timeout_s=0.3) is not None:
            pass


class LinkContract:
    """Subclasses provide the fixture `connect(client_id, will=None)`."""

    @pytest.fixture
    def connect(self) -> Connect:
        raise NotImplementedError

    def test_first_event_is_link_up(self, connect: Connect) -> None:
        assert isinstance(connect("a").receive(timeout_s=5), LinkUp)

    def test_receive_without_wait_returns_none(self, connect: Connect) -> None:
        link = connect("a")
        settle(link)
        assert link.receive(timeout_s=0) is None

    def test_publication_reaches_every_matching_subscriber(self, connect: Connect) -> None:
        one, two, other, sender = (
            connect("one"),
            connect("two"),
            connect("other"),
            connect("sender"),
        )
        one.subscribe("t/+/x")
        two.subscribe("t/#")
        other.subscribe("u/#")
        settle(one, two, other)
        sender.publish("t/1/x", b"hello")
        assert deliveries(one, 1) == [Delivery("t/1/x", b"hello")]
        assert deliveries(two, 1) == [Delivery("t/1/x", b"hello")]
        assert deliveries(other, 1, patience_s=0.3) == []

    def test_large_binary_payload_arrives_unchanged(self, connect: Connect) -> None:
        receiver, sender = connect("receiver"), connect("sender")
        receiver.subscribe("big")
        settle(receiver)
        payload = bytes(range(256)) * 16_384
        sender.publish("big", payload)
        assert deliveries(receiver, 1) == [Delivery("big", payload)]

    def test_order_of_one_sender_on_one_topic_is_kept(self, connect: Connect) -> None:
        receiver, sender = connect("receiver"), connect("sender")
        receiver.subscribe("n")
        settle(receiver)
        for i in range(50):
            sender.publish("n", str(i).encode())
        assert [int(d.payload) for d in deliveries(receiver, 50)] == list(range(50))

    def test_retained_publication_reaches_a_later_subscriber(self, connect: Connect) -> None:
        connect("sender").publish("r/1", b"kept", retain=True)
        later = connect("later")
        settle(later)
        later.subscribe("r/#")
        assert deliveries(later, 1) == [Delivery("r/1", b"kept")]

    def test_empty_retained_publication_clears_it(self, connect: Connect) -> None:
        sender = connect("sender")
        sender.publish("r/2", b"kept", retain=True)
        sender.publish("r/2", b"", retain=True)
        later = connect("later")
        settle(later)
        later.subscribe("r/2")
        assert deliveries(later, 1, patience_s=0.5) == []

    def test_session_keeps_what_came_while_away(self, connect: Connect) -> None:
        link, sender = connect("away"), connect("sender")
        link.subscribe("kept/#")
        settle(link)
        link.close()
        sender.publish("kept/1", b"while away")
        settle(sender)
        again = connect("away")
        assert deliveries(again, 1) == [Delivery("kept/1", b"while away")]

    def test_unsubscribe_ends_deliveries(self, connect: Connect) -> None:
        link, sender = connect("a"), connect("sender")
        link.subscribe("s")
        settle(link)
        link.unsubscribe("s")
        settle(link)
        sender.publish("s", b"x")
        assert deliveries(link, 1, patience_s=0.5) == []

    def test_will_is_published_when_a_client_vanishes(self, connect: Connect) -> None:
        watcher = self.watch(connect)
        link = connect("mortal", will=Will("will/mortal", b"gone"))
        settle(link)
        self.vanish(link)
        assert deliveries(watcher, 1) == [Delivery("will/mortal", b"gone")]

    def test_will_is_not_published_after_close(self, connect: Connect) -> None:
        watcher = self.watch(connect)
        link = connect("polite", will=Will("will/polite", b"gone"))
        settle(link)
        link.close()
        assert deliveries(watcher, 1, patience_s=0.7) == []

    def watch(self, connect: Connect) -> Link:
        """A link that hears wills."""
        watcher = connect("watcher")
        watcher.subscribe("will/#")
        settle(watcher)
        return watcher

    def vanish(self, link: Link) -> None:
        """End a link's connection as a crash would."""
        raise NotImplementedError
