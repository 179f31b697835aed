package io.shoal.core

import io.shoal.core.wire.InUse
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.Release

/**
 * A model to take into use, as a release or a finished run names it, and what became of it (`edge_client/core/session.py`).
 *
 * @param number of the release; 0 if a finished run offers the model
 * @param tries how often taking it into use was started and did not end
 * @param problem why it is not in use; empty if it is in use, or was not tried yet
 * @param again whether it is to be tried again although there is a problem
 * @param evaluated over the windows that the device holds back, with this model; [before] with the one that was in use
 * @param latencyMs what a prediction of one window takes
 */
@InternalShoalApi
public data class Offer(
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

/** What was measured of an offered model, of the model in use, and of a prediction. */
internal data class Measured(
    val evaluated: Metrics = Metrics(),
    val before: Metrics = Metrics(),
    val latencyMs: Double = 0.0,
)

/**
 * What a device does about a model that is offered to it (`wire/SPEC.md`, 'Releases'); pure, the same rules as `edge_client/core/offers.py`:
 * releases are taken in the order of their numbers, none twice; one that cannot be used is tried again later, since what was in its way may
 * have passed; one whose loading ends the client again and again is given up; what becomes of one is remembered until the next.
 */
internal object Offers {
    /** A release came. One that is no newer than the last, or speaks for an earlier start of the aggregator, changes nothing. */
    fun onRelease(session: Session, release: Release): Session {
        if (release.number <= session.released || release.epoch < session.releasedEpoch) return session
        val offer = Offer(release.epoch, release.runId, release.bundle, release.model, release.number, release.group)
        return session.copy(offer = offer, released = release.number, releasedEpoch = release.epoch)
    }

    /** The offer that is still to be taken into use: it has not failed, or is to be tried again, and is not in use with what was kept of it last. */
    fun open(session: Session, current: Current?): Offer? {
        val offer = session.offer?.takeIf { it.problem.isEmpty() || it.again } ?: return null
        if (current == null || !isOf(offer, current) || offer.number > current.release) return offer
        val kept = KeptRules.of(session.kept, offer.bundle, offer.model)
        return offer.takeIf { kept != null && kept.tensors != current.kept }
    }

    /** Whether an offer is in use, under its number; it may still be open, if something newer was kept of it. */
    fun isInUse(offer: Offer, current: Current?): Boolean = current != null && isOf(offer, current) && offer.number == current.release

    private fun isOf(offer: Offer, current: Current) =
        listOf(current.run, current.bundle, current.model) == listOf(offer.run, offer.bundle, offer.model)

    /** A plan was carried out, and the device keeps this of the model that it started from. To be saved before its update is stored. */
    fun onKept(session: Session, kept: Kept): Session = session.copy(kept = KeptRules.with(session.kept, kept))

    /** What was kept is gone or damaged. */
    fun onKeptLost(session: Session, tensors: String): Session = session.copy(kept = session.kept.filterNot { it.tensors == tensors })

    /** The offered model is about to be loaded. To be saved before it is. */
    fun onTrying(session: Session): Session {
        val tries = session.offer?.tries ?: return session
        if (tries >= Rounds.MOST_TRIES) {
            return session.withOffer { copy(problem = "loading it was started $tries times and ended this client each time", again = false) }
        }
        return session.withOffer { copy(tries = tries + 1) }
    }

    /** Taking the offered model into use was broken off in good order: that is no try. */
    fun onInterrupted(session: Session): Session = session.withOffer { copy(tries = maxOf(0, tries - 1)) }

    /** The offered model cannot be used, and why. */
    fun onFailed(session: Session, problem: String): Session = session.withOffer { copy(tries = 0, problem = problem, again = false) }

    /**
     * The client was started anew: what failed is to be tried again, unless it was given up. Until that is done, the device goes on saying its
     * problem.
     */
    fun onAgain(session: Session): Session =
        session.withOffer { if (problem.isEmpty() || tries >= Rounds.MOST_TRIES) this else copy(again = true) }

    /** The offered model was tried and can be used; its bundle has this name and version. To be saved before it is taken into use. */
    fun onMeasured(session: Session, measured: Measured, name: String, version: Long): Session {
        val known = session.versions + (name to maxOf(version, session.versions[name] ?: 0))
        return session.copy(versions = known).withOffer {
            val (evaluated, before) = Pair(measured.evaluated, measured.before)
            copy(problem = "", again = false, evaluated = evaluated, before = before, latencyMs = measured.latencyMs)
        }
    }

    /** The offered model is in use. */
    fun onTaken(session: Session): Session = session.withOffer { copy(tries = 0) }

    /** Why the model in use answers without what the device has kept, as things are now; empty where it has that, or nothing was kept. */
    fun aloneOf(session: Session, current: Current?): String = when {
        current == null || current.kept.isNotEmpty() -> ""
        KeptRules.of(session.kept, current.bundle, current.model) != null -> "what is kept of this model is not in use yet"
        else -> current.alone.ifEmpty { KeptRules.whyAlone(session.kept, current.bundle, current.model) }
    }

    /** What the device says of its releases; [current] is the model in use. */
    fun inUse(session: Session, deviceId: String, current: Current?, failures: Long): InUse {
        val number = current?.release ?: 0
        val offer = session.offer?.takeIf { it.number == session.released } ?: Offer(0, "", "", "")
        val (problem, latencyMs) = Pair(offer.problem, offer.latencyMs)
        return InUse(deviceId, number, session.released, problem, offer.evaluated, offer.before, latencyMs, failures, aloneOf(session, current))
    }

    private fun Session.withOffer(change: Offer.() -> Offer): Session = copy(offer = offer?.change())
}
