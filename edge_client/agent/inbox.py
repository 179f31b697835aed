"""Messages from the broker, parsed and verified."""

from collections.abc import Callable, Sequence

import msgspec

from wire.errors import LimitExceeded, Malformed
from wire.identity.keys import PublicKey
from wire.identity.signed import Verifier
from wire.links.port import Delivery
from wire.messages import (
    CLIENT,
    PLAN_BYTES,
    PROTOCOL_VERSION,
    AggregatorStatus,
    Count,
    Epoch,
    Name,
    Pieces,
    Plan,
    Positive,
    Release,
    Reply,
    Want,
)
from wire.pieces import check_pieces
from wire.topics import Topics

_KINDS = {
    "plan": Plan,
    "reply": Reply,
    "release": Release,
    "want": Want,
    "aggregator": AggregatorStatus,
}


class PlanHead(msgspec.Struct, frozen=True, tag="plan"):
    """Identity of a plan that this client cannot read, and the reason."""

    run_id: Name
    epoch: Epoch
    round: Positive
    attempt: Count
    device_id: Name
    problem: str = ""


class Inbox:
    """Reader of the messages to one device."""

    def __init__(
        self,
        device_id: str,
        topics: Topics,
        trusted: Sequence[PublicKey],
        now: Callable[[], float],
        most_bytes: int,
    ) -> None:
        """Trust the signatures of the root keys `trusted`.

        Args:
            device_id: device whose messages are read.
            topics: topics of the fleet.
            trusted: root keys.
            now: clock, Unix time as well as the device knows it.
            most_bytes: size of the largest blob that is accepted.
        """
        self._most_bytes = most_bytes
        self._device_id, self._topics, self._now = device_id, topics, now
        self._verifier = Verifier(topics.fleet, trusted)

    def open(
        self, delivery: Delivery
    ) -> Plan | PlanHead | Reply | Release | Want | AggregatorStatus | str:
        """Return the verified message, or the digest of a blob.

        Of a plan with contents that this client does not know, it returns the head. The digest of
        a blob is not compared with its bytes here.

        Raises:
            WireError: the message is to be ignored.
        """
        address = self._topics.parse(delivery.topic)
        if address.kind == "blob":
            return address.digest
        if address.kind not in _KINDS or address.device_id not in ("", self._device_id):
            raise Malformed(f"topic {delivery.topic[:200]!r}: not one that this device reads")
        if len(delivery.payload) > PLAN_BYTES:
            raise LimitExceeded(
                f"{address.kind} of {len(delivery.payload)} bytes: at most {PLAN_BYTES} are "
                "accepted"
            )
        message: Plan | PlanHead | Reply | Release | Want | AggregatorStatus
        try:
            message = self._verifier.open(delivery.payload, _KINDS[address.kind], self._now())
        except Malformed as error:
            if address.kind != "plan":
                raise
            head = self._verifier.open(delivery.payload, PlanHead, self._now())
            client = f"{CLIENT}, which speaks protocol {PROTOCOL_VERSION}"
            problem = f"the client, {client}, cannot read the plan: update the client; {error}"
            message = msgspec.structs.replace(head, problem=problem)
        if not isinstance(message, AggregatorStatus) and message.device_id != self._device_id:
            raise Malformed(f"{address.kind} for {message.device_id}, not for {self._device_id}")
        return message

    def open_pieces(self, payload: bytes) -> Pieces:
        """Return the list of pieces that came in place of a large blob.

        Raises:
            LimitExceeded: the blob is larger than this device accepts.
            WireError: the message is to be ignored.
        """
        pieces: Pieces = self._verifier.open(payload, Pieces, self._now())
        return check_pieces(pieces, self._most_bytes)
