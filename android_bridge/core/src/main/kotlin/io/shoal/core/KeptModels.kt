package io.shoal.core

import io.shoal.core.wire.Limits
import io.shoal.core.wire.Names
import io.shoal.core.wire.Plan
import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.digest
import io.shoal.core.wire.encodeTensors
import java.io.IOException

/**
 * What a device answers with beside an offered model: its [tensors], the digest of what it has [kept] of that model (empty where it has kept
 * nothing), and why the model stands [alone] although something was kept. [lost] is the digest of what was kept and is damaged.
 */
internal class Own(val tensors: Tensors, val kept: String = "", val alone: String = "", val lost: String = "")

/** What this device has kept, of the last few models (`edge_client/models/kept.py`). */
internal class KeptModels(private val storage: Storage) {
    /** The digests of the models of which something is kept that can be read and is not damaged. */
    fun models(session: Session): List<String> = session.kept.filter { canBeUsed(it) }.map { it.model }

    private fun canBeUsed(kept: Kept): Boolean = try {
        storage.blob(kept.tensors) != null
    } catch (_: IOException) {
        false
    }

    /**
     * The session with what a plan made of the model that it started from, if it made something; its blob is stored. The session is to be
     * saved before the plan's update is.
     */
    fun put(session: Session, plan: Plan, finished: FinishedPlan): Session {
        val own = finished.private.filterKeys { Names.roleOf(it) in OWN }
        if (own.keys.none { Names.roleOf(it) == Names.KEPT }) return session
        val payload = encodeTensors(own)
        storage.putBlob(digest(payload), payload)
        return Offers.onKept(session, Kept(plan.runId, plan.bundle, finished.model, digest(payload)))
    }

    /**
     * What is to be used with an offered model: what was kept of it. Where nothing was, the private tensors of its run, which belong to no
     * model.
     */
    fun beside(session: Session, offer: Offer): Own {
        val kept = KeptRules.of(session.kept, offer.bundle, offer.model)
        val payload = kept?.let { storage.blob(it.tensors) }
        if (kept != null && payload != null) return Own(decodeTensors(payload, Limits.OWN_FILES).tensors, kept.tensors)
        val private = storage.private(offer.run, Long.MAX_VALUE).filterKeys { Names.roleOf(it) == Names.PRIVATE }
        if (kept != null) return Own(private, alone = "what was kept of this model is damaged or missing", lost = kept.tensors)
        return Own(private, alone = KeptRules.whyAlone(session.kept, offer.bundle, offer.model))
    }

    private companion object {
        val OWN = setOf(Names.PRIVATE, Names.KEPT)
    }
}
