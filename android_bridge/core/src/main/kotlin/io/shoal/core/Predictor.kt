package io.shoal.core

import io.shoal.core.random.Noise
import io.shoal.core.wire.PublicKey
import java.io.Closeable

/**
 * Predictions by the model in use on this device, with what the device keeps for itself. Needs no connection. It takes up a newer model when
 * one has come into use; what plans do does not touch it. Used by one thread at a time.
 *
 * @param trusted one of these keys must have signed the model's bundle; none: it is checked for damage alone
 */
public class Predictor(private val storage: Storage, loader: GraphLoader, trusted: List<PublicKey>) : Closeable {
    private val loaded = LoadedBundle(storage, loader, windows = null, trusted, Noise.fromEntropy())
    private var model: Pair<String, Tensors>? = null

    /**
     * Class probabilities (n, classes) float32 of examples [x] (n, window).
     *
     * @throws ConfigException no run has finished on this device, or its model was damaged and is not here again yet
     * @throws ShoalException the model cannot answer for these examples
     */
    public fun predict(x: Tensor): Tensor = try {
        answer(x)
    } catch (_: MissingBlob) { // another model came into use meanwhile, and the old one was forgotten
        try {
            answer(x)
        } catch (missing: MissingBlob) {
            throw ConfigException("the model of this device is damaged: the next job fetches it again", missing)
        }
    }

    private fun answer(x: Tensor): Tensor {
        val current = storage.current() ?: throw ConfigException("this device has no model yet: no run has finished on it")
        val executor = loaded.executor(current.bundle)
        val tensors = model?.takeIf { it.first == current.model }?.second ?: loaded.tensors(current.model)
        model = current.model to tensors
        return executor.predict(tensors, current.private, x)
    }

    /** Lets the graphs go. */
    override fun close(): Unit = loaded.close()
}
