package io.shoal.core

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

/** The finished update on its way to the aggregator: whole, or offered and then sent in pieces (`edge_client/agent/sending.py`). */
internal class Sending(
    private val deviceId: String,
    private val storage: Storage,
    private val outbox: Outbox,
    private val permits: (Int) -> Boolean,
) {
    private var offered: Pieces? = null
    private val sent = HashSet<Int>()

    /**
     * Sends the update of a session, or offers it, if the day's bytes permit that. False: the update is lost. [again]: what was sent of it may
     * be lost, since nothing was heard for a while; over a connection that was cut the link sends it again by itself.
     */
    fun begin(session: Session, again: Boolean): Boolean {
        if (again) sent.clear()
        val (plan, bytes) = Pair(session.plan, storage.updateSize())
        return if (plan == null || bytes <= WHOLE_BYTES) whole(session) else offer(session, plan, bytes)
    }

    private fun whole(session: Session): Boolean {
        val payload = storage.update()
        if (payload == null || digest(payload) != session.update) return false
        if (permits(payload.size)) outbox.update(payload)
        return true
    }

    private fun offer(session: Session, plan: Plan, bytes: Long): Boolean {
        val pieces = offered?.takeIf { it.digest == session.update } ?: cut(bytes, storage::updatePart)
        if (pieces.digest != session.update) return false
        if (pieces != offered) sent.clear()
        offered = pieces
        outbox.offer(UpdateOffer(deviceId, plan.runId, plan.round, pieces))
        return true
    }

    /** Sends the pieces that the aggregator wants, but for those that are on their way; whether the update is still pending. */
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
