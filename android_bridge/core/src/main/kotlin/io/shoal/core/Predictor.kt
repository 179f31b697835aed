package io.shoal.core

import io.shoal.core.random.Noise
import io.shoal.core.wire.PublicKey
import java.io.Closeable

/**
 * Predictions by the model that the last finished run left on this device, with what the device keeps for itself. Needs no connection.
 * It takes up a newer model when a later run has finished.
 */
public class Predictor internal constructor(
    private val storage: Storage,
    loader: GraphLoader,
    windows: Windows,
    trusted: PublicKey?,
) : Closeable {
    private val loaded = LoadedBundle(storage, loader, windows, trusted, Noise.fromEntropy())

    /**
     * Class probabilities (n, classes) float32 of examples [x] (n, window).
     *
     * @throws ConfigException no run has finished on this device, or its model or bundle is not here
     */
    public fun predict(x: Tensor): Tensor {
        val session = storage.session()
        if (!session.finished || !storage.hasBlob(session.finalModel) || !storage.hasBlob(session.finalBundle)) {
            throw ConfigException("this device has no model yet: no run has finished on it")
        }
        val private = storage.private(session.runId, session.answered + 1)
        return loaded.executor(session.finalBundle, session.versions).predict(loaded.tensors(session.finalModel), private, x)
    }

    /** Lets the graphs go. */
    override fun close(): Unit = loaded.close()
}
