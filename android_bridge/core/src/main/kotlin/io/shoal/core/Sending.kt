package io.shoal.core

import io.shoal.core.wire.PacketLimit
import io.shoal.core.wire.Piece
import io.shoal.core.wire.Pieces
import io.shoal.core.wire.Plan
import io.shoal.core.wire.UpdateOffer
import io.shoal.core.wire.WHOLE_BYTES
import io.shoal.core.wire.Want
import io.shoal.core.wire.cut
import io.shoal.core.wire.digest
import io.shoal.core.wire.offset
import io.shoal.core.wire.size

/**
 * Transfer of the finished update to the aggregator: whole, or offered and sent in pieces
 * (`edge_client/agent/sending.py`).
 */
internal class Sending(
    private val deviceId: String,
    private val storage: Storage,
    private val outbox: Outbox,
    private val limit: () -> PacketLimit,
    private val permits: (Int) -> Boolean,
) {
    private var offered: Pieces? = null
    private val sent = HashSet<Int>()

    /**
     * Send the update of a session, or offer it, if the limit of bytes a day permits it. Return
     * false if the update is lost. [again]: true if earlier pieces may be lost because no answer
     * came. After a mere reconnection they are not: the link sends them again by itself.
     *
     * @throws LimitExceededException the broker takes only smaller packets, even in pieces
     */
    fun begin(session: Session, again: Boolean): Boolean {
        if (again) sent.clear()
        val (plan, bytes) = Pair(session.plan, storage.updateSize())
        return if (plan == null || bytes <= minOf(WHOLE_BYTES, limit().payloadBytes)) whole(session) else offer(session, plan, bytes)
    }

    private fun whole(session: Session): Boolean {
        val payload = storage.update()
        if (payload == null || digest(payload) != session.update) return false
        if (permits(payload.size)) outbox.update(payload)
        return true
    }

    private fun offer(session: Session, plan: Plan, bytes: Long): Boolean {
        val pieces = offered?.takeIf { it.digest == session.update && it.pieceBytes <= limit().payloadBytes } ?: cut(bytes, limit(), storage::updatePart)
        if (pieces.digest != session.update) return false
        if (pieces != offered) sent.clear()
        offered = pieces
        outbox.offer(UpdateOffer(deviceId, plan.runId, plan.round, pieces))
        return true
    }

    /** Send the wanted pieces that are not under way. Return true if the update is pending. */
    fun onWant(want: Want, session: Session): Boolean {
        val pieces = offered
        if (pieces == null || want.update != pieces.digest || session.stage != Stage.PENDING || session.update != want.update) return false
        for (index in want.pieces) {
            if (index in sent || index >= pieces.pieces.size) continue
            if (!permits(pieces.size(index))) break
            sent += index
            outbox.piece(Piece(deviceId, want.update, index), storage.updatePart(pieces.offset(index), pieces.size(index)))
        }
        return true
    }
}
