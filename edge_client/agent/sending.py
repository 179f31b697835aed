"""Transfer of the finished update to the aggregator: whole, or offered and sent in pieces."""

import logging
from dataclasses import dataclass, field
from errno import ENOENT

from edge_client.agent.outbox import Outbox
from edge_client.agent.traffic import Traffic
from edge_client.core.session import Session
from edge_client.storage.state import UPDATE, DeviceState
from wire.codec import encode
from wire.messages import Offer, Piece, Pieces, Want
from wire.pieces import WHOLE_BYTES, cut, place

log = logging.getLogger("shoal.edge")


@dataclass
class Sending:
    """Sender of a session's update, within the bytes that the policy permits in a day.

    Without a connection the update waits for the next one. `most_whole`: size of the largest update
    that is sent whole, if the broker takes it. `offered`: pieces of the last offer. `under_way`:
    indexes of the pieces that were sent and not lost.
    """

    device_id: str
    state: DeviceState
    outbox: Outbox
    traffic: Traffic
    most_a_day: int | None
    most_whole: int = WHOLE_BYTES
    offered: Pieces | None = None
    under_way: set[int] = field(default_factory=set)

    def begin(self, session: Session, again: bool = False) -> bool:
        """Send the pending update, or offer it; return True if there is one.

        `again`: True if earlier pieces may be lost because no answer came. After a mere
        reconnection they are not: the link sends them again by itself.

        Raises:
            LimitExceeded: the broker takes only smaller packets, even in pieces.
        """
        size = (
            self.state.files.size(UPDATE)
            if session.stage == "pending" and self.outbox.connected
            else 0
        )
        if not size:
            return False
        limit = self.outbox.link.limit
        if size <= min(self.most_whole, limit.payload_bytes) or session.plan is None:
            if self._permits(size) and (payload := self.state.files.read(UPDATE)) is not None:
                self.outbox.publish("update", payload)
            return True
        pieces = self.offered
        if (
            pieces is None
            or pieces.digest != session.update
            or pieces.piece_bytes > limit.payload_bytes
        ):
            pieces = cut(size, self._update_part, limit)
            self.offered, self.under_way = pieces, set()
        if again:
            self.under_way = set()
        self.outbox.publish(
            "offer",
            encode(Offer(self.device_id, session.plan.run_id, session.plan.round, pieces)),
        )
        return True

    def on_want(self, want: Want, session: Session) -> bool:
        """Send the wanted pieces that are not under way; return True if the update is pending."""
        pieces = self.offered
        if (
            pieces is None
            or want.update != pieces.digest
            or session.stage != "pending"
            or session.update != want.update
        ):
            return False
        for index in want.pieces:
            if index in self.under_way or index >= len(pieces.pieces):
                continue
            offset, size = place(pieces, index)
            if not self._permits(size):
                break
            self.under_way.add(index)
            message = encode(Piece(self.device_id, want.update, index))
            payload = self._update_part(offset, size)
            self.outbox.publish("piece", message + b"\n" + payload)
        return True

    def _update_part(self, offset: int, size: int) -> bytes:
        """Return a part of the update.

        Raises:
            FileNotFoundError: the update has vanished.
        """
        payload = self.state.files.read(UPDATE, offset, size)
        if payload is None:
            raise FileNotFoundError(ENOENT, "the update is missing", UPDATE)
        return payload

    def _permits(self, num_bytes: int) -> bool:
        exceeded = self.traffic.exceeds(self.most_a_day, num_bytes)
        if exceeded:
            log.warning("Update waits: device=%s: %s", self.device_id, exceeded)
        return not exceeded
