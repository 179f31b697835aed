"""Other aggregators of the same fleet, and what devices have heard of them (SPEC.md, 'Who speaks for the fleet')."""

from collections.abc import Callable
from typing import Any

from aggregator.core.ports import Clock
from wire.errors import OtherAggregator, WireError
from wire.messages import AggregatorStatus, Plan
from wire.signed import Verifier


class Rivals:
    """Reads what other aggregators have signed. Without a verifier nothing that they sent is believed."""

    def __init__(self, verifier: Verifier | None, clock: Clock, count: Callable[[str, str], None]) -> None:
        """`count`: told the reason and the details of what cannot be believed."""
        self._verifier, self._clock, self._count = verifier, clock, count

    def check(self, payload: bytes, boot_id: str, epoch: int) -> None:
        """Look at a status on the fleet's own topic, as the aggregator of this boot id and epoch.

        Raises:
            OtherAggregator: another aggregator has taken over the fleet.
        """
        status: AggregatorStatus | None = self._open(payload, AggregatorStatus, "the aggregator's topic")
        if status is not None and status.boot_id != boot_id and status.epoch > epoch:
            taken = f"epoch {status.epoch}, this one has {epoch}"
            raise OtherAggregator(f"another aggregator has taken over the fleet ({taken}): this one ends")

    def proven_epoch(self, device_id: str, proof: str) -> int:
        """The epoch of the plan that a device shows as a proof; -1 if it cannot be believed, or is another device's."""
        plan: Plan | None = self._open(proof.encode(), Plan, f"proof of device={device_id}")
        return plan.epoch if plan is not None and plan.device_id == device_id else -1

    def _open(self, payload: bytes, kind: Any, what: str) -> Any:
        if self._verifier is None:
            return None
        try:
            return self._verifier.open(payload, kind, self._clock())
        except WireError as error:
            self._count("malformed", f"{what}: {error}")
            return None
