"""Rivals of an aggregator: other aggregators of its fleet, and clients with its certificate.

The rules are in SPEC.md, 'Who speaks for the fleet'.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aggregator.ports import Clock
from wire.errors import ConfigError, OtherAggregator, WireError
from wire.identity.signed import Verifier
from wire.messages import AggregatorStatus, Plan
from wire.topics import Topics, client_name

log = logging.getLogger("shoal.aggregator")

OFTEN, OFTEN_S = 3, 60.0
"""Number of lost connections, and time (s), that suggest that another client takes them."""


class WrongFleet(ConfigError):
    """The broker does not let this client speak for the fleet.

    Every further start would take the connection of the aggregator whose certificate this is.
    """

    exit_status = 3

    def __init__(self, action: str, topics: Topics, reason: str) -> None:
        fleet = topics.fleet
        super().__init__(
            f"fleet {fleet}: the broker does not let this client {action} {topics.aggregator} "
            f"({reason}). Is --fleet {fleet} right, and the certificate (--cert) that of "
            f"{client_name(fleet, 'aggregator')}? `shoal acl --fleet {fleet}` prints the broker's "
            "access list"
        )


@dataclass
class Rivals:
    """Checker of messages that other aggregators signed. Without a verifier none is believed."""

    verifier: Verifier | None
    clock: Clock
    count: Callable[[str, str], None]
    """Counts a message that is not believed or a denial, by reason and details."""
    _heard: bool = False
    _lost_at_s: list[float] = field(default_factory=list)

    def check(self, payload: bytes, announced: bytes, boot_id: str, epoch: int) -> None:
        """Check a status on the fleet's topic, as the aggregator of this boot id and epoch.

        `announced`: the aggregator's own last status. Its return only shows that the broker lets
        the aggregator speak.

        Raises:
            OtherAggregator: another aggregator has taken over the fleet.
        """
        if payload == announced:
            self._heard = True
            return
        status: AggregatorStatus | None = self._open(
            payload, AggregatorStatus, "the aggregator's topic"
        )
        self._heard |= status is not None and status.boot_id == boot_id
        if status is not None and status.boot_id != boot_id and status.epoch > epoch:
            epochs = f"epoch {status.epoch}, this one has {epoch}"
            raise OtherAggregator(
                f"Another aggregator has taken over the fleet ({epochs}), so this one ends."
            )

    def proven_epoch(self, device_id: str, proof: str) -> int:
        """Return the epoch of the plan that a device shows as a proof.

        It is -1 if the plan is not believed, or is another device's.
        """
        plan: Plan | None = self._open(proof.encode(), Plan, f"proof of device={device_id}")
        return plan.epoch if plan is not None and plan.device_id == device_id else -1

    def denied(self, action: str, topic: str, reason: str, topics: Topics) -> None:
        """Handle a denial by the broker.

        Raises:
            WrongFleet: the topic is the fleet's own, and nothing of this aggregator was ever
            published there.
        """
        self.count("denied", f"the broker does not let the aggregator {action} {topic}: {reason}")
        if topic == topics.aggregator and not self._heard:
            raise WrongFleet(action, topics, reason)

    def lost(self, reason: str) -> None:
        """Log the loss of the connection to the broker."""
        now_s = self.clock()
        self._lost_at_s = [*(at_s for at_s in self._lost_at_s if now_s - at_s < OFTEN_S), now_s]
        hint = (
            " (does another client use the same certificate, or the same client id?)"
            if len(self._lost_at_s) >= OFTEN and "acknowledged" not in reason
            else ""
        )
        log.warning("Connection to the broker lost, trying again: reason=%s%s", reason, hint)

    def _open(self, payload: bytes, kind: Any, what: str) -> Any:
        if self.verifier is None:
            return None
        try:
            return self.verifier.open(payload, kind, self.clock())
        except WireError as error:
            self.count("malformed", f"{what}: {error}")
            return None
