"""The finished update on its way to the aggregator: whole, or offered and then sent in pieces."""

import logging

from edge_client.agent.outbox import Outbox
from edge_client.agent.traffic import Traffic
from edge_client.core.ports import DeviceState
from edge_client.core.session import Session
from wire.codec import encode, encode_piece
from wire.messages import AggregatorStatus, Offer, Piece, Pieces, Want
from wire.pieces import WHOLE_BYTES, cut, place

log = logging.getLogger("shoal.edge")


class Sending:
    """Sends the update of a session, if the day's bytes permit it. Without a connection it waits
    for the next one."""

    def __init__(
        self,
        device_id: str,
        state: DeviceState,
        outbox: Outbox,
        traffic: Traffic,
        most_a_day: int | None,
    ) -> None:
        self._device_id, self._state, self._outbox = device_id, state, outbox
        self._traffic, self._most_a_day = traffic, most_a_day
        self._takes_pieces = False
        self._offered: Pieces | None = None
        self._sent: set[int] = set()

    def hear(self, status: AggregatorStatus) -> None:
        """The aggregator says what it takes."""
        self._takes_pieces = status.pieces

    def begin(self, session: Session, again: bool = False) -> bool:
        """Send the pending update, or offer it. Returns whether there is one. `again`: what was
        sent of it may be lost, since nothing was heard for a while; over a connection that was cut
        the link sends it again by itself."""
        size = (
            self._state.update_size()
            if session.stage == "pending" and self._outbox.connected
            else 0
        )
        if not size:
            return False
        if size <= WHOLE_BYTES or not self._takes_pieces or session.plan is None:
            if self._permits(size) and (payload := self._state.update()) is not None:
                self._outbox.publish("update", payload)
            return True
        if self._offered is None or self._offered.digest != session.update:
            self._offered, self._sent = cut(size, self._state.update_part), set()
        if again:
            self._sent = set()
        self._outbox.publish(
            "offer",
            encode(Offer(self._device_id, session.plan.run_id, session.plan.round, self._offered)),
        )
        return True

    def on_want(self, want: Want, session: Session) -> bool:
        """Send the pieces that the aggregator wants, but for those that are on their way; whether
        the update is still pending."""
        pieces = self._offered
        if (
            pieces is None
            or want.update != pieces.digest
            or session.stage != "pending"
            or session.update != want.update
        ):
            return False
        for index in want.pieces:
            if index in self._sent or index >= len(pieces.pieces):
                continue
            offset, size = place(pieces, index)
            if not self._permits(size):
                break
            self._sent.add(index)
            self._outbox.publish(
                "piece",
                encode_piece(
                    Piece(self._device_id, want.update, index),
                    self._state.update_part(offset, size),
                ),
            )
        return True

    def _permits(self, num_bytes: int) -> bool:
        exceeded = self._traffic.exceeds(self._most_a_day, num_bytes)
        if exceeded:
            log.warning("the update waits device=%s: %s", self._device_id, exceeded)
        return not exceeded
