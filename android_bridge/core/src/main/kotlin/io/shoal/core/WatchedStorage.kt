package io.shoal.core

import io.shoal.core.wire.Limits
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.decodeUpdate

/** What was measured in one round: over the windows that it [trained] on, and over those on which it [evaluated] the model that came. */
@InternalShoalApi
public class RoundMeasured(public val run: String, public val round: Long, public val trained: Metrics, public val evaluated: Metrics)

/** Is told of what a device stores, by the thread that stores it. */
@InternalShoalApi
public interface StorageWatcher {
    /** Another model answers from now on. */
    public fun onModel(current: Current)

    /** A round was carried out. */
    public fun onRound(measured: RoundMeasured)
}

/**
 * A storage that one process uses alone: which model is in use is read once and then known, so that a prediction reads nothing, and
 * [watcher] is told of what changes.
 */
@InternalShoalApi
public class WatchedStorage(private val stored: Storage, private val watcher: StorageWatcher) : Storage by stored {
    private val lock = Any()
    private var held: Current? = null

    override fun current(): Current? = synchronized(lock) { held ?: stored.current().also { held = it } }

    override fun saveCurrent(current: Current) {
        synchronized(lock) {
            stored.saveCurrent(current)
            held = current
        }
        watcher.onModel(current)
    }

    override fun putUpdate(runId: String, round: Long, payload: ByteArray, private: Tensors) {
        stored.putUpdate(runId, round, payload, private)
        val update = decodeUpdate(payload, Limits.OWN_FILES).first
        watcher.onRound(RoundMeasured(runId, round, update.trained, update.evaluated))
    }

    /** Which model is in use is read again: somebody else has changed it. */
    public fun forget(): Unit = synchronized(lock) { held = null }
}
