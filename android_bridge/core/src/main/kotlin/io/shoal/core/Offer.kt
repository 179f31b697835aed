package io.shoal.core

import io.shoal.core.wire.Bundle
import io.shoal.core.wire.Policy

/**
 * The model that a finished run offered, beside the one in use (`Storage.current`). It takes the place of that one only when its bundle was
 * verified, its graphs were loaded and it has answered on the device's own windows; until then, and if that fails, the old one answers.
 */
internal class Offer(
    private val storage: Storage,
    private val loaded: LoadedBundle,
    private val policy: Policy,
    private val log: Log,
) {
    private var current = storage.current()
    private var failed = ""

    /** Whether an offer is still to be tried. One that failed is tried again after a restart, a few times. */
    fun open(session: Session): Boolean = session.finalModel.isNotEmpty() && !isCurrent(session) &&
        session.trials < Rounds.MOST_TRIES && failed != keyOf(session)

    /** Whether an offer can be tried now: it is open, and all that it needs is here. */
    fun ready(session: Session): Boolean =
        open(session) && storage.hasBlob(session.finalBundle) && storage.hasBlob(session.finalModel)

    /** The blobs that the model in use needs, and those of an offer that is still to be tried. */
    fun blobs(session: Session): Set<String> = buildSet {
        current?.let {
            add(it.bundle)
            add(it.model)
        }
        if (open(session)) {
            add(session.finalBundle)
            add(session.finalModel)
        }
    }

    /**
     * Tries the offer of this session, and puts it in use if it can be. Name and version of its bundle, or null if it cannot be used.
     *
     * @throws MissingBlob a blob was damaged
     */
    fun take(session: Session): Pair<String, Long>? {
        val private = storage.private(session.finalRun, Long.MAX_VALUE)
        val tried = contained {
            val manifest = loaded.verified(session.finalBundle).manifest
            Bundle.checkVersion(manifest, session.versions)
            if (policy.bundles?.contains(manifest.name) == false) {
                throw BundleException("the policy does not permit the bundle ${manifest.name}")
            }
            loaded.executor(session.finalBundle).tryOut(loaded.tensors(session.finalModel), private)
            manifest.name to manifest.version
        }
        if (tried !is Contained.Done) {
            failed = keyOf(session)
            contained { loaded.close() }
            log.write(Log.Level.ERROR, "the model of run ${session.finalRun} is not used: ${(tried as Contained.Failed).detail}")
            return null
        }
        val taken = Current(session.finalBundle, session.finalModel, session.finalRun, private)
        storage.saveCurrent(taken)
        current = taken
        log.write(Log.Level.INFO, "the model of run ${session.finalRun} is in use")
        return tried.value
    }

    private fun isCurrent(session: Session) =
        current?.let { keyOf(session) == keyOf(it.bundle, it.model, it.run) } ?: false

    private fun keyOf(session: Session) = keyOf(session.finalBundle, session.finalModel, session.finalRun)

    private fun keyOf(bundle: String, model: String, run: String) = "$bundle $model $run"
}
