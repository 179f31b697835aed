"""Broker and links inside one process, for simulations and tests.

They follow MQTT's rules, with no randomness and no timing.
"""

import queue
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from wire.links.port import Delivery, LinkEvent, LinkUp, Will
from wire.pieces import UNLIMITED, PacketLimit


def topic_matches(pattern: str, topic: str) -> bool:
    """Return True if an MQTT subscription `pattern` covers `topic`."""
    wanted, got = pattern.split("/"), topic.split("/")
    for i, part in enumerate(wanted):
        if part == "#":
            return True
        if i >= len(got) or part not in ("+", got[i]):
            return False
    return len(wanted) == len(got)


@dataclass
class _Session:
    patterns: set[str] = field(default_factory=set)
    inbox: "queue.SimpleQueue[LinkEvent]" = field(default_factory=queue.SimpleQueue)
    will: Will | None = None
    connection: object = None


@dataclass(eq=False)
class InProcessBroker:
    """Broker that holds sessions and retained publications in memory."""

    lock: AbstractContextManager[object] = field(default_factory=threading.RLock)
    retained: dict[str, bytes] = field(default_factory=dict)
    _sessions: dict[str, _Session] = field(default_factory=dict)

    def connect(self, client_id: str, will: Will | None = None) -> "InProcessLink":
        """Open a link, which continues the client's earlier session if there is one."""
        with self.lock:
            session = self._sessions.setdefault(client_id, _Session())
            link = InProcessLink(self, session)
            session.will, session.connection = will, link
            session.inbox.put(LinkUp())
            return link

    def publish(self, topic: str, payload: bytes, retain: bool) -> None:
        """Hand a publication to every session that subscribes to its topic."""
        with self.lock:
            if retain and payload:
                self.retained[topic] = payload
            elif retain:
                self.retained.pop(topic, None)
            for session in self._sessions.values():
                if any(topic_matches(pattern, topic) for pattern in session.patterns):
                    session.inbox.put(Delivery(topic, payload))


@dataclass(eq=False)
class InProcessLink:
    """Connection (`wire.links.port.Link`) to an `InProcessBroker`."""

    _broker: InProcessBroker
    _session: _Session
    limit: PacketLimit = UNLIMITED

    def subscribe(self, *topics: str) -> None:
        with self._broker.lock:
            for pattern in topics:
                self._session.patterns.add(pattern)
                for topic, payload in self._broker.retained.items():
                    if topic_matches(pattern, topic):
                        self._session.inbox.put(Delivery(topic, payload, retained=True))

    def unsubscribe(self, *topics: str) -> None:
        self._session.patterns.difference_update(topics)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        self._broker.publish(topic, payload, retain)

    def receive(self, timeout_s: float | None = None) -> LinkEvent | None:
        try:
            return (
                self._session.inbox.get(timeout=timeout_s)
                if timeout_s != 0
                else self._session.inbox.get_nowait()
            )
        except queue.Empty:
            return None

    def confirm(self, deliveries: Iterable[Delivery]) -> None:
        pass

    def close(self) -> None:
        if self._session.connection is self:
            self._session.connection = self._session.will = None

    def vanish(self) -> None:
        """End the connection like a crash: the broker publishes the will."""
        will = self._session.will
        self.close()
        if will is not None:
            self._broker.publish(will.topic, will.payload, retain=True)
