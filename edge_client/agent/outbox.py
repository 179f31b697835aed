"""What a device says to its aggregator."""

import logging
from collections.abc import Callable, Iterable

from edge_client.agent.incidents import Incidents
from edge_client.agent.traffic import Traffic
from edge_client.work.plan import Declined
from wire import messages as m
from wire.codec import encode
from wire.errors import printable
from wire.links.port import Link
from wire.topics import FromDevice, Topics

log = logging.getLogger("shoal.edge")


class Outbox:
    """Publishes on one device's topics, and counts the bytes. `connected` says whether the link is
    up."""

    def __init__(
        self,
        device_id: str,
        topics: Topics,
        link: Link,
        traffic: Traffic,
        incidents: Incidents,
        clock: Callable[[], float],
    ):
        self._device_id, self._topics, self._link = device_id, topics, link
        self._traffic, self._incidents, self._clock = traffic, incidents, clock
        self.connected = False
        self._beat_at_s = 0.0

    def publish(self, kind: FromDevice, payload: bytes, retain: bool = False) -> None:
        """Publish on the device's topic of this kind."""
        self.count(payload)
        self._link.publish(self._topics.device(self._device_id, kind), payload, retain=retain)

    def count(self, payload: bytes) -> None:
        """These bytes came or went."""
        try:
            self._traffic.add(len(payload))
        except OSError as error:
            self._incidents.survived("to store the traffic", error)

    def check_in(self, message: m.CheckIn) -> None:
        """Say that this device is here, and what there is on it."""
        self.publish("check-in", encode(message))
        self._beat_at_s = 0.0
        self.beat()

    def in_use(self, message: m.InUse) -> None:
        """Say which release is in use."""
        self.publish("in-use", encode(message))

    def beat(self) -> None:
        """Say that this device is here, if it is time to."""
        if self.connected and self._clock() >= self._beat_at_s:
            self._beat_at_s = self._clock() + m.HEARTBEAT_S / 2
            self.publish("status", encode(m.DeviceStatus(self._device_id, True)), retain=True)

    def leave(self) -> None:
        """Say that this device is no longer here."""
        self.publish("status", encode(m.DeviceStatus(self._device_id, False)), retain=True)

    def decline(self, plan: m.Plan, declined: Declined, proof: str = "") -> None:
        """Say that a plan is not carried out."""
        detail = printable(declined.detail)[:1000]
        log.error(
            "declined round=%d device=%s reason=%s: %s",
            plan.round,
            self._device_id,
            declined.reason,
            detail,
        )
        decline = m.Decline(
            plan.run_id,
            plan.epoch,
            plan.round,
            plan.attempt,
            self._device_id,
            declined.reason,
            detail,
            proof,
        )
        self.publish("decline", encode(decline))

    def ask(self, digests: Iterable[str]) -> None:
        """Ask the aggregator to publish these blobs and pieces."""
        for digest in sorted(digests):
            self.publish("fetch", encode(m.Fetch(self._device_id, digest, pieces=True)))
