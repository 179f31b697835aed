package io.shoal.core

import io.shoal.core.wire.Bundle
import io.shoal.core.wire.InUse
import io.shoal.core.wire.Manifest
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.Policy
import java.io.IOException

/**
 * Takes models that are offered into use, and says which one answers (`edge_client/agent/releases.py`). An offered model takes the place of the one
 * in use (`Storage.current`) only when its bundle was verified, its graphs were loaded and it has answered on the device's own windows;
 * until then, and if that fails, the old one answers.
 */
internal class Releases(
    private val deviceId: String,
    private val storage: Storage,
    private val loaded: LoadedBundle,
    private val keptModels: KeptModels,
    private val policy: Policy,
    private val trial: Trial,
    private val log: Log,
) {
    private var current = storage.current()

    private class Verdict(val manifest: Manifest, val own: Own, val measured: Measured)

    /** What is still to be taken into use. */
    fun open(session: Session): Offer? = Offers.open(session, current)

    /** Whether an offer can be tried now: it is open, and all that it needs is here. */
    fun ready(session: Session): Boolean = open(session)?.let { storage.hasBlob(it.bundle) && storage.hasBlob(it.model) } ?: false

    /** The blobs that the model in use needs, and those of an offer that is still to be tried. */
    fun blobs(session: Session): Set<String> =
        setOfNotNull(current?.bundle, current?.model, open(session)?.bundle, open(session)?.model)

    /** [blobs], and what stays but is not fetched again: those of the model before and of the one offered last, and what the device has kept. */
    fun kept(session: Session): Set<String> {
        val (before, offer) = Pair(storage.before(), session.offer)
        return blobs(session) + setOfNotNull(before?.bundle, before?.model, offer?.bundle, offer?.model) + session.kept.map { it.tensors }
    }

    /** What the device says of its releases. */
    fun said(session: Session): InUse = Offers.inUse(session, deviceId, current, storage.failures())

    /** The session at a start: a crash may have come after a model was in use and before that was noted, and what failed is tried again. */
    fun recovered(session: Session): Session {
        val offer = session.offer ?: return session
        return if (offer.tries > 0 && offer.problem.isEmpty() && open(session) == null) Offers.onTaken(session) else Offers.onAgain(session)
    }

    /**
     * Takes the offer of this session into use, if it can be. [save] stores a session; [checkpoint] is called between batches.
     *
     * @throws MissingBlob a blob was damaged
     * @throws Stopped it was told to stop
     */
    fun take(began: Session, checkpoint: () -> Unit, save: (Session) -> Unit) {
        val offer = open(began) ?: return log.write(Log.Level.ERROR, "the offered model is not used: ${began.offer?.problem}")
        val tried = try {
            contained { tryOut(began, offer, checkpoint) }
        } catch (error: RuntimeException) { // to go on later: it is no try
            save(Offers.onInterrupted(began))
            throw error
        }
        if (tried !is Contained.Done) {
            contained { loaded.close() }
            val detail = (tried as Contained.Failed).detail
            log.write(Log.Level.ERROR, "the model of ${nameOf(offer)} is not used, the one before stays: $detail")
            return save(Offers.onFailed(began, detail))
        }
        val (manifest, measured, own) = Triple(tried.value.manifest, tried.value.measured, tried.value.own)
        val held = if (own.lost.isEmpty()) began else Offers.onKeptLost(began, own.lost)
        val session = Offers.onMeasured(held, measured, manifest.name, manifest.version)
        save(session)
        val taken = Current(offer.bundle, offer.model, offer.run, own.tensors, offer.number, offer.group, own.kept, own.alone)
        try {
            storage.saveCurrent(taken)
        } catch (full: IOException) { // the client did not end: it is no try
            save(Offers.onInterrupted(session))
            throw full
        }
        current = taken
        save(Offers.onTaken(session))
        val untried = if (trial.hasWindows) "" else "; tried on zeros: this device has no window"
        log.write(Log.Level.INFO, "the model of ${nameOf(offer)} is in use${beside(own)}$untried")
    }

    private fun tryOut(session: Session, offer: Offer, checkpoint: () -> Unit): Verdict {
        val manifest = loaded.verified(offer.bundle).manifest
        val (x, y) = trial.heldBack(manifest)
        val before = if (Offers.isInUse(offer, current)) {
            offer.before // measured when it came
        } else {
            current?.let { evaluateUsed(it, x, y, checkpoint) } ?: Metrics()
        }
        if (offer.number == 0L) Bundle.checkVersion(manifest, session.versions) // a release may go back: its own number only grows
        if (policy.bundles?.contains(manifest.name) == false) {
            throw BundleException("the policy does not permit the bundle ${manifest.name}")
        }
        val own = keptModels.beside(session, offer)
        val tried = Tried(loaded.executor(offer.bundle), loaded.tensors(offer.model), own.tensors)
        tried.tryOut()
        return Verdict(manifest, own, Measured(trial.evaluate(tried, x, y, checkpoint), before, trial.latencyMs(tried, manifest)))
    }

    /** Null where the model in use cannot be loaded: then there is nothing to compare with. */
    private fun evaluateUsed(used: Current, x: Tensor, y: Tensor, checkpoint: () -> Unit): Metrics? = try {
        val evaluated = contained {
            trial.evaluate(Tried(loaded.executor(used.bundle), loaded.tensors(used.model), used.private), x, y, checkpoint)
        }
        (evaluated as? Contained.Done)?.value
    } catch (_: MissingBlob) {
        null
    }

    private fun beside(own: Own) = when {
        own.kept.isNotEmpty() -> ", with what the device has kept of it"
        own.alone.isNotEmpty() -> ", alone: ${own.alone}"
        else -> ""
    }

    private fun nameOf(offer: Offer) = if (offer.number > 0) "release ${offer.number}" else "run ${offer.run}"
}
