package io.shoal.core

import io.shoal.core.wire.InUse
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.Release

/**
 * Model that a release or a finished run offers for use, with its outcome
 * (`edge_client/core/session.py`).
 *
 * @param number number of the release; 0 if a finished run offers the model
 * @param tries number of starts to take it into use that did not end
 * @param problem reason why it is not in use; empty if it is in use, or was not tried yet
 * @param again true if it is to be tried again in spite of a problem
 * @param evaluated metrics of this model over the windows that the device holds back
 * @param before metrics of the model in use before, over the same windows
 * @param latencyMs duration of a prediction of one window
 */
@InternalShoalApi
public data class ModelOffer(
    val epoch: Long,
    val run: String,
    val bundle: String,
    val model: String,
    val number: Long = 0,
    val group: String = "",
    val tries: Int = 0,
    val problem: String = "",
    val evaluated: Metrics = Metrics(),
    val before: Metrics = Metrics(),
    val latencyMs: Double = 0.0,
    val again: Boolean = false,
)

/** Metrics of an offered model and of the model in use, and the latency of a prediction. */
internal data class Measurement(
    val evaluated: Metrics = Metrics(),
    val before: Metrics = Metrics(),
    val latencyMs: Double = 0.0,
)

/**
 * Models that are offered to a device (`wire/SPEC.md`, 'Releases'); pure, with the rules of
 * `edge_client/core/offers.py`. Offers are taken in the order of their numbers, none twice. An
 * offer that fails is tried again later, since its obstacle may have passed. An offer whose loading
 * ends the client repeatedly is given up. The outcome of an offer is remembered until the next
 * offer.
 */
internal object Offers {
    /**
     * Return the session after a release came. A release that is no newer than the last offer, or
     * comes from an earlier start of the aggregator than the last release, changes nothing.
     */
    fun onRelease(session: Session, release: Release): Session {
        if (release.number <= session.released || release.epoch < session.releasedEpoch) return session
        val offer = ModelOffer(release.epoch, release.runId, release.bundle, release.model, release.number, release.group)
        return session.copy(offer = offer, released = release.number, releasedEpoch = release.epoch)
    }

    /**
     * Return the offer that is still to be taken into use, or null. An offer is open if it has not
     * failed or is to be tried again, and if the model in use is not that model with its latest
     * personal model.
     */
    fun open(session: Session, current: Current?): ModelOffer? {
        val offer = session.offer?.takeIf { it.problem.isEmpty() || it.again } ?: return null
        if (current == null || !isOf(offer, current) || offer.number > current.release) return offer
        val personalModel = PersonalModelRules.of(session.personalModels, offer.bundle, offer.model)
        return offer.takeIf { personalModel != null && personalModel.tensors != current.personalModel }
    }

    /**
     * Return the newer of the model in use and the one before. It is the one before if the device
     * went back from it.
     */
    fun newest(current: Current?, before: Current?): Current? = if (current?.back.isNullOrEmpty()) current else before ?: current

    /**
     * Return the model before as the one in use, because of this reason. After the device went
     * back, that is a return to the newer model.
     */
    fun goneBack(current: Current, before: Current, reason: String): Current = before.run {
        Current(bundle, model, run, private, release, group, personalModel, alone, sinceS, if (current.back.isEmpty()) reason else "")
    }

    /**
     * Return true if an offer is in use, under its number. It may still be open, for a newer
     * personal model.
     */
    fun isInUse(offer: ModelOffer, current: Current?): Boolean = current != null && isOf(offer, current) && offer.number == current.release

    private fun isOf(offer: ModelOffer, current: Current) =
        listOf(current.run, current.bundle, current.model) == listOf(offer.run, offer.bundle, offer.model)

    /**
     * Return the session after a plan left a personal model. Save it before the update is stored.
     */
    fun onPersonalModel(session: Session, personalModel: PersonalModel): Session =
        session.copy(personalModels = PersonalModelRules.with(session.personalModels, personalModel))

    /** Return the session without a personal model whose tensors are missing or damaged. */
    fun onPersonalModelLost(session: Session, tensors: String): Session = session.copy(personalModels = session.personalModels.filterNot { it.tensors == tensors })

    /**
     * Return the session before the offered model is loaded, with one more try. Save it before
     * loading: after too many tries the offer has a problem instead.
     */
    fun onTrying(session: Session): Session {
        val tries = session.offer?.tries ?: return session
        if (tries >= Rounds.MOST_TRIES) {
            return session.withOffer { copy(problem = "loading it was started $tries times and ended this client each time", again = false) }
        }
        return session.withOffer { copy(tries = tries + 1) }
    }

    /** Return the session after an orderly stop of a take-up, which does not count as a try. */
    fun onInterrupted(session: Session): Session = session.withOffer { copy(tries = maxOf(0, tries - 1)) }

    /** Return the session after the offered model failed, with the problem. */
    fun onFailed(session: Session, problem: String): Session = session.withOffer { copy(tries = 0, problem = problem, again = false) }

    /**
     * Return the session in which a failed offer is to be tried again, unless it was given up. This
     * is due after a restart of the client. The device reports the old problem until the offer was
     * tried.
     */
    fun onAgain(session: Session): Session =
        session.withOffer { if (problem.isEmpty() || tries >= Rounds.MOST_TRIES) this else copy(again = true) }

    /**
     * Return the session after the offered model passed its trial; its bundle has this name and
     * version. Save it before the model is taken into use.
     */
    fun onMeasured(session: Session, measurement: Measurement, name: String, version: Long): Session {
        val versions = session.versions + (name to maxOf(version, session.versions[name] ?: 0))
        return session.copy(versions = versions).withOffer {
            val (evaluated, before) = Pair(measurement.evaluated, measurement.before)
            copy(problem = "", again = false, evaluated = evaluated, before = before, latencyMs = measurement.latencyMs)
        }
    }

    /** Return the session after the offered model was taken into use. */
    fun onTaken(session: Session): Session = session.withOffer { copy(tries = 0) }

    /**
     * Return the reason why the model in use answers without the device's personal model. It is
     * empty if a personal model is in use, or if the device has none.
     */
    fun aloneOf(session: Session, current: Current?): String = when {
        current == null || current.personalModel.isNotEmpty() -> ""
        PersonalModelRules.of(session.personalModels, current.bundle, current.model) != null -> current.back.ifEmpty { "the personal model of this model is not in use yet" }
        else -> current.alone.ifEmpty { PersonalModelRules.whyAlone(session.personalModels, current.bundle, current.model) }
    }

    /** Return the device's report of its last offer; [current] is the model in use. */
    fun inUse(session: Session, deviceId: String, current: Current?, failures: Long): InUse {
        val number = current?.release ?: 0
        val offer = session.offer ?: ModelOffer(0, "", "", "")
        val back = current?.takeUnless { isOf(offer, it) }?.back.orEmpty()
        val (problem, latencyMs) = Pair(offer.problem.ifEmpty { back }, offer.latencyMs)
        val (alone, model) = Pair(aloneOf(session, current), current?.model ?: "")
        return InUse(deviceId, number, session.released, problem, offer.evaluated, offer.before, latencyMs, failures, alone, model)
    }

    private fun Session.withOffer(change: ModelOffer.() -> ModelOffer): Session = copy(offer = offer?.change())
}
