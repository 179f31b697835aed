package io.shoal.core

import io.shoal.core.wire.Limits
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.decodeUpdate

/**
 * Metrics of one round: over the windows that it [trained] on, and over those on which it
 * [evaluated] the model that came.
 */
@InternalShoalApi
public class RoundMeasurement(public val run: String, public val round: Long, public val trained: Metrics, public val evaluated: Metrics)

/** Listener for the changes of a device's storage, on the thread that stores. */
@InternalShoalApi
public interface StorageWatcher {
    /** Called when another model answers from now on. */
    public fun onModel(current: Current)

    /** Called when a round was carried out. */
    public fun onRound(measurement: RoundMeasurement)
}

/**
 * Storage that one process uses alone. The model in use is read once and then remembered, so that a
 * prediction reads no file. [watcher] is called about changes.
 */
@InternalShoalApi
public class WatchedStorage(private val stored: Storage, private val watcher: StorageWatcher) : Storage by stored {
    private val lock = Any()
    private var cachedModel: Current? = null

    override fun current(): Current? = synchronized(lock) { cachedModel ?: stored.current().also { cachedModel = it } }

    override fun saveCurrent(current: Current) {
        synchronized(lock) {
            stored.saveCurrent(current)
            cachedModel = current
        }
        watcher.onModel(current)
    }

    override fun putUpdate(runId: String, round: Long, payload: ByteArray, private: Tensors) {
        stored.putUpdate(runId, round, payload, private)
        val update = decodeUpdate(payload, Limits.OWN_FILES).first
        watcher.onRound(RoundMeasurement(runId, round, update.trained, update.evaluated))
    }

    /** Read the model in use again at the next access, since somebody else has changed it. */
    public fun forget(): Unit = synchronized(lock) { cachedModel = null }
}
