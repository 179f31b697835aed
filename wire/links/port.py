"""What the agent and the aggregator ask of a connection to a broker.

A link is pull-based: everything that happens on it is read, in order, from `receive`. Rules every
adapter keeps (tested by one contract suite): a publication reaches every subscriber at least once,
also one that was away and whose session the broker kept; a retained publication reaches later
subscribers; the will is published when a client vanishes without `close`; after a lost connection
the link connects again by itself, renews its subscriptions, then reports `LinkUp`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Delivery:
    """A publication that arrived."""

    topic: str
    payload: bytes
    retained: bool = field(default=False, compare=False)
    """Whether it was published before the subscription, and kept by the broker."""
    receipt: object = field(default=None, compare=False, repr=False)
    """By which the link knows it when it is confirmed."""


@dataclass(frozen=True)
class LinkUp:
    """Connected; subscriptions are in place."""

    kept: bool = True
    """Whether the broker has kept what it had of this client: its subscriptions, and what waited
    for it."""


@dataclass(frozen=True)
class LinkDown:
    """Connection lost; the link is trying to connect again."""

    reason: str


@dataclass(frozen=True)
class Denied:
    """The broker does not let this client do something: `action` is publish or subscribe."""

    action: str
    topic: str


LinkEvent = Delivery | LinkUp | LinkDown | Denied


@dataclass(frozen=True)
class Will:
    """What the broker publishes, retained, when the client vanishes."""

    topic: str
    payload: bytes


class Link(Protocol):
    """A client's connection to a broker. Safe to call from one thread; `publish` may be called from
    any."""

    def subscribe(self, *topics: str) -> None:
        """Subscribe (QoS 1), now and after every new connection. ``+`` and ``#`` are MQTT's
        wildcards."""

    def unsubscribe(self, *topics: str) -> None:
        """Undo `subscribe`."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Publish (QoS 1). Does not wait; while the connection is down the publication is queued.
        An empty retained payload clears what was retained."""

    def receive(self, timeout_s: float | None = None) -> LinkEvent | None:
        """The next event; None after `timeout_s` seconds (None: wait for ever; 0: do not wait)."""

    def confirm(self, deliveries: Iterable[Delivery]) -> None:
        """Tell the broker that these are safe: until then it keeps them, and delivers them again
        after a new connection. Only a link that was opened to be confirmed needs it; others confirm
        what `receive` hands out by themselves."""

    def close(self) -> None:
        """Send what is queued, then disconnect without the will. The broker keeps the session."""
