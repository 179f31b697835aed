"""Connection to a broker, as the agent and the aggregator use it.

A link is pull-based: all its events are read, in order, from `receive`. Every adapter obeys these
rules (one contract suite tests them): a publication reaches every subscriber at least once, also an
absent one whose session the broker kept; a retained publication reaches later subscribers; the will
is published when a client vanishes without `close`; after a lost connection the link reconnects by
itself, renews its subscriptions, then reports `LinkUp`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from wire.pieces import PacketLimit


@dataclass(frozen=True)
class Delivery:
    """Publication that arrived."""

    topic: str
    payload: bytes
    retained: bool = field(default=False, compare=False)
    """True if it was published before the subscription and retained by the broker."""
    receipt: object = field(default=None, compare=False, repr=False)
    """Identity of the delivery for the link's `confirm`."""


@dataclass(frozen=True)
class LinkUp:
    """Event of a connection whose subscriptions are in place."""

    has_session: bool = True
    """True if the broker has kept the client's session: subscriptions and waiting messages."""


@dataclass(frozen=True)
class LinkDown:
    """Event of a lost connection. The link is reconnecting."""

    reason: str


@dataclass(frozen=True)
class Denied:
    """Refusal of an action by the broker. `action` is publish or subscribe."""

    action: str
    topic: str
    reason: str = field(default="", compare=False)
    """Broker's reason; empty if it named none."""


LinkEvent = Delivery | LinkUp | LinkDown | Denied


@dataclass(frozen=True)
class Will:
    """Publication that the broker makes, retained, when the client vanishes."""

    topic: str
    payload: bytes


class Link(Protocol):
    """Client's connection to a broker.

    It may be called from one thread; `publish` may be called from any.
    """

    @property
    def limit(self) -> PacketLimit:
        """Limit of the last connection's packets."""

    def subscribe(self, *topics: str) -> None:
        """Subscribe with QoS 1, now and after every new connection.

        ``+`` and ``#`` are MQTT's wildcards.

        Raises:
            LinkError: the broker has no subscriptions with wildcards.
        """

    def unsubscribe(self, *topics: str) -> None:
        """Undo `subscribe`."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Publish with QoS 1, without waiting.

        While the connection is down, the publication is queued. An empty retained payload
        removes the topic's retained message.

        Raises:
            LimitExceeded: the packet would be larger than `limit`.
        """

    def receive(self, timeout_s: float | None = None) -> LinkEvent | None:
        """Return the next event; None after `timeout_s` seconds (None: no limit; 0: no wait)."""

    def confirm(self, deliveries: Iterable[Delivery]) -> None:
        """Tell the broker that these deliveries are stored.

        Until then it keeps them, and delivers them again after a new connection. Only a link that
        was opened with confirmation needs the call; others confirm each event that `receive`
        returns.
        """

    def close(self) -> None:
        """Send queued publications, then disconnect without the will.

        The broker keeps the session.
        """
