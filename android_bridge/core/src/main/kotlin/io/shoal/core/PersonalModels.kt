package io.shoal.core

import io.shoal.core.wire.Limits
import io.shoal.core.wire.Names
import io.shoal.core.wire.Plan
import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.digest
import io.shoal.core.wire.encodeTensors
import java.io.IOException

/**
 * Tensors that a device uses with an offered model.
 *
 * @property personalModel digest of the personal model; empty if there is none
 * @property alone reason why existing personal models are not used, or empty
 * @property lost digest of a personal model that is damaged, or empty
 */
internal class Own(val tensors: Tensors, val personalModel: String = "", val alone: String = "", val lost: String = "")

/** Personal models that this device made of the last few models (`edge_client/models/kept.py`). */
internal class PersonalModels(private val storage: Storage) {
    /** Return the digests of the models that have a readable, undamaged personal model. */
    fun models(session: Session): List<String> = session.personalModels.filter { canBeUsed(it) }.map { it.model }

    private fun canBeUsed(personalModel: PersonalModel): Boolean = try {
        storage.blob(personalModel.tensors) != null
    } catch (_: IOException) {
        false
    }

    /**
     * Return the session with the personal model that a plan made of its starting model, if it made
     * one. Its blob is stored. Save the session before the plan's update is stored.
     */
    fun put(session: Session, plan: Plan, finished: FinishedPlan): Session {
        val personal = finished.private.filterKeys { Names.roleOf(it) in PERSONAL_ROLES }
        if (personal.keys.none { Names.roleOf(it) == Names.PERSONAL }) return session
        val payload = encodeTensors(personal)
        storage.putBlob(digest(payload), payload)
        return Offers.onPersonalModel(session, PersonalModel(plan.runId, plan.bundle, finished.model, digest(payload)))
    }

    /**
     * Return the tensors to use with an offered model: those of its personal model. Without one
     * these are the private tensors of its run, which belong to no particular model.
     */
    fun beside(session: Session, offer: ModelOffer): Own {
        val personalModel = PersonalModelRules.of(session.personalModels, offer.bundle, offer.model)
        val payload = personalModel?.let { storage.blob(it.tensors) }
        if (personalModel != null && payload != null) return Own(decodeTensors(payload, Limits.OWN_FILES).tensors, personalModel.tensors)
        val private = storage.private(offer.run, Long.MAX_VALUE).filterKeys { Names.roleOf(it) == Names.PRIVATE }
        if (personalModel != null) return Own(private, alone = "the personal model of this model is damaged or missing", lost = personalModel.tensors)
        return Own(private, alone = PersonalModelRules.whyAlone(session.personalModels, offer.bundle, offer.model))
    }

    private companion object {
        val PERSONAL_ROLES = setOf(Names.PRIVATE, Names.PERSONAL)
    }
}
