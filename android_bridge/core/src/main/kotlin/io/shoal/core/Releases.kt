package io.shoal.core

import io.shoal.core.wire.Bundle
import io.shoal.core.wire.InUse
import io.shoal.core.wire.Manifest
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.Policy
import io.shoal.core.wire.Tasks
import java.io.IOException
import java.util.Locale

/**
 * Device's side of releases: take up offered models and report which one is in use
 * (`edge_client/agent/releases.py`). An offered model replaces the model in use (`Storage.current`)
 * only after its bundle was verified, its graphs were loaded and it answered on the device's own
 * windows. Until then, and if that fails, the old model answers.
 */
internal class Releases(
    private val deviceId: String,
    private val storage: Storage,
    private val loaded: LoadedBundle,
    private val personalModels: PersonalModels,
    private val policy: Policy,
    private val trial: Trial,
    private val log: Log,
    private val nowS: () -> Double,
    private val onError: (String, Throwable) -> Unit,
) {
    private var current = storage.current()
    private var before = storage.before()
    private var compared = false

    private class Verdict(val manifest: Manifest, val personal: Own, val measurement: Measurement)

    /** Return the offer that is still to be taken into use, or null. */
    fun open(session: Session): ModelOffer? = Offers.open(session, Offers.newest(current, before))

    /** Return true if an offer can be tried now: it is open, and its blobs are here. */
    fun ready(session: Session): Boolean = open(session)?.let { storage.hasBlob(it.bundle) && storage.hasBlob(it.model) } ?: false

    /** Return the blobs of the model in use, and those of an offer that is still to be tried. */
    fun blobs(session: Session): Set<String> =
        setOfNotNull(current?.bundle, current?.model, open(session)?.bundle, open(session)?.model)

    /**
     * Return [blobs], and those that stay stored but are not fetched again: the blobs of the model
     * before, of the last offer and of personal models.
     */
    fun stored(session: Session): Set<String> {
        val offer = session.offer
        return blobs(session) + setOfNotNull(before?.bundle, before?.model, offer?.bundle, offer?.model) + session.personalModels.map { it.tensors }
    }

    /** Return the device's report of its releases. */
    fun report(session: Session): InUse = Offers.inUse(session, deviceId, current, storage.failures())

    /**
     * Return the session at a start of the client. If a crash came after a model was in use and
     * before that was stored, it is stored now; a failed offer is to be tried again.
     */
    fun recovered(session: Session): Session {
        val offer = session.offer ?: return session
        return if (offer.tries > 0 && offer.problem.isEmpty() && open(session) == null) Offers.onTaken(session) else Offers.onAgain(session)
    }

    /**
     * Take the offer of this session into use, or remember why it failed. [save] stores a session.
     * [checkpoint] is called between batches.
     *
     * @throws MissingBlobException a blob was damaged
     * @throws StoppedException the client is stopping
     */
    fun take(began: Session, checkpoint: () -> Unit, save: (Session) -> Unit) {
        val offer = open(began) ?: return log.write(Log.Level.ERROR, "Offered model not taken into use, the previous one stays: ${began.offer?.problem}")
        val tried = try {
            contained { tryOut(began, offer, checkpoint) }
        } catch (error: RuntimeException) { // the take-up goes on later, so this does not count as a try
            save(Offers.onInterrupted(began))
            throw error
        }
        if (tried !is Contained.Done) {
            contained { loaded.close() }
            val (detail, error) = (tried as Contained.Failed).let { Pair(it.detail, it.error) }
            if (error != null) onError("Offered model not taken into use", error)
            log.write(Log.Level.ERROR, "Offered model not taken into use, the previous one stays: ${nameOf(offer)}: $detail")
            return save(Offers.onFailed(began, detail))
        }
        val (manifest, measurement, personal) = Triple(tried.value.manifest, tried.value.measurement, tried.value.personal)
        val remaining = if (personal.lost.isEmpty()) began else Offers.onPersonalModelLost(began, personal.lost)
        val session = Offers.onMeasured(remaining, measurement, manifest.name, manifest.version)
        save(session)
        val next = Current(offer.bundle, offer.model, offer.run, personal.tensors, offer.number, offer.group, personal.personalModel, personal.alone, nowS())
        try {
            use(next)
        } catch (full: IOException) { // the client did not end, so this does not count as a try
            save(Offers.onInterrupted(session))
            throw full
        }
        save(Offers.onTaken(session))
        val untried = if (trial.hasWindows) "" else "; tried on zeros: this device has no window"
        log.write(Log.Level.INFO, "Model in use: ${nameOf(offer)}${beside(personal)}$untried")
    }

    /**
     * True if the model in use is to be compared with the one before, once for each start of the
     * client.
     */
    val comparing: Boolean get() = !compared && current != null && before != null

    /**
     * Use the model before if it is better on the windows held out since the newer one came: if its
     * mean loss is lower by more than one standard error of the difference. After that, the newer
     * one is used again by the same rule. Return true if the model in use is another one now.
     * [checkpoint] is called between batches.
     *
     * @throws StoppedException the client is stopping
     */
    fun compare(checkpoint: () -> Unit): Boolean {
        compared = true
        val (used, before) = Pair(current ?: return false, before ?: return false)
        if (!trial.hasFresh(Offers.newest(used, before)!!.sinceS)) return false // so nothing is loaded
        val next = try {
            (contained { better(used, before, checkpoint) } as? Contained.Done)?.value
        } catch (_: MissingBlobException) {
            null
        } ?: return false
        use(next)
        log.write(Log.Level.INFO, "Model in use: model=${next.model.take(12)} ${next.back.ifEmpty { "again" }}")
        return true
    }

    /** Return the model before as the one in use, or null if it is not better. */
    private fun better(used: Current, before: Current, checkpoint: () -> Unit): Current? {
        val (manifest, other) = Pair(loaded.verified(used.bundle).manifest, loaded.verified(before.bundle).manifest)
        val alike = listOf(manifest.task, manifest.classes, manifest.window) == listOf(other.task, other.classes, other.window)
        val (x, y) = trial.fresh(manifest, Offers.newest(used, before)!!.sinceS)
        if (manifest.task != Tasks.CLASSIFICATION || !alike || y.rows == 0) return null
        val (losses, others) = listOf(used, before).map { trial.losses(candidate(it), x, y, checkpoint) }
        val (gain, error) = Trial.gain(losses, others)
        if (gain <= error) return null
        val reason = "went back from model %s, because its mean loss over %d held-out windows since it came is %.3f, and %.3f with the " +
            "model before (standard error of the difference %.3f)"
        return Offers.goneBack(used, before, reason.format(Locale.ROOT, used.model.take(12), y.rows, losses.average(), others.average(), error))
    }

    private fun use(next: Current) {
        storage.saveCurrent(next)
        before = storage.before()
        current = next
    }

    private fun candidate(used: Current) = Candidate(loaded.executor(used.bundle), loaded.tensors(used.model), used.private)

    private fun tryOut(session: Session, offer: ModelOffer, checkpoint: () -> Unit): Verdict {
        val manifest = loaded.verified(offer.bundle).manifest
        val (x, y) = trial.heldBack(manifest)
        val before = if (Offers.isInUse(offer, current)) {
            offer.before // measured when the offer came
        } else {
            current?.let { evaluateUsed(it, x, y, checkpoint) } ?: Metrics()
        }
        if (offer.number == 0L) Bundle.checkVersion(manifest, session.versions) // a release may go back to an older version; its own number only grows
        if (policy.bundles?.contains(manifest.name) == false) {
            throw BundleException("the policy does not permit the bundle ${manifest.name}")
        }
        val personal = personalModels.beside(session, offer)
        val candidate = Candidate(loaded.executor(offer.bundle), loaded.tensors(offer.model), personal.tensors)
        candidate.tryOut()
        return Verdict(manifest, personal, Measurement(trial.evaluate(candidate, x, y, checkpoint), before, trial.latencyMs(candidate, manifest)))
    }

    /** Return the metrics of the model in use, or null if it cannot be loaded for a comparison. */
    private fun evaluateUsed(used: Current, x: Tensor, y: Tensor, checkpoint: () -> Unit): Metrics? = try {
        val evaluated = contained {
            trial.evaluate(candidate(used), x, y, checkpoint)
        }
        (evaluated as? Contained.Done)?.value
    } catch (_: MissingBlobException) {
        null
    }

    private fun beside(personal: Own) = when {
        personal.personalModel.isNotEmpty() -> " personal_model=used"
        personal.alone.isNotEmpty() -> " personal_model=none: ${personal.alone}"
        else -> ""
    }

    private fun nameOf(offer: ModelOffer) = if (offer.number > 0) "release=${offer.number}" else "campaign=${offer.run}"
}
