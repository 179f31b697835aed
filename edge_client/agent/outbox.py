"""Messages from a device to its aggregator."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from edge_client.agent.inbox import PlanHead
from edge_client.agent.traffic import Traffic
from edge_client.core.report import permitted_detail
from edge_client.storage.incidents import Incidents
from edge_client.work.plan import DeclinedPlan
from wire import messages as m
from wire.codec import encode
from wire.errors import printable
from wire.links.port import Link
from wire.topics import FromDevice, Topics

log = logging.getLogger("shoal.edge")


@dataclass
class Outbox:
    """Publisher on one device's topics, which counts the bytes.

    `clock` cannot be set, `wall` is the device's clock. `reports_errors`: True if the texts of
    errors may leave the device. `connected`: True if the link is up. `beat_at_s`: time of the next
    heartbeat.
    """

    device_id: str
    topics: Topics
    link: Link
    traffic: Traffic
    incidents: Incidents
    clock: Callable[[], float]
    wall: Callable[[], float]
    reports_errors: bool
    connected: bool = False
    beat_at_s: float = 0.0

    def publish(self, kind: FromDevice, payload: bytes, retain: bool = False) -> None:
        """Publish on the device's topic of this kind."""
        self.count(payload)
        self.link.publish(self.topics.device(self.device_id, kind), payload, retain=retain)

    def count(self, payload: bytes) -> None:
        """Count the bytes of a message that was sent or received."""
        try:
            self.traffic.add(len(payload))
        except OSError as error:
            self.incidents.add("Traffic count not stored", error)

    def beat(self, now: bool = False) -> None:
        """Send a heartbeat if one is due, or in any case if `now` is True."""
        if self.connected and (now or self.clock() >= self.beat_at_s):
            self.beat_at_s = self.clock() + m.HEARTBEAT_S / 2
            status = m.DeviceStatus(self.device_id, True, at_s=self.wall())
            self.publish("status", encode(status), retain=True)

    def decline(self, plan: m.Plan | PlanHead, declined: DeclinedPlan, proof: str = "") -> None:
        """Tell the aggregator that a plan is not carried out."""
        detail = printable(declined.detail)[:1000]
        log.log(
            logging.INFO if declined.reason == "policy" else logging.ERROR,
            "Plan declined: round=%d device=%s reason=%s: %s",
            plan.round,
            self.device_id,
            declined.reason,
            detail,
        )
        decline = m.Decline(
            plan.run_id,
            plan.epoch,
            plan.round,
            plan.attempt,
            self.device_id,
            declined.reason,
            permitted_detail(self.reports_errors, declined.reason, detail),
            proof,
        )
        self.publish("decline", encode(decline))

    def ask(self, digests: Iterable[str]) -> None:
        """Ask the aggregator to publish these blobs and pieces."""
        for digest in sorted(digests):
            self.publish("fetch", encode(m.Fetch(self.device_id, digest)))
