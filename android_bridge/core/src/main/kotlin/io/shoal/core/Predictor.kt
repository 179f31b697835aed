package io.shoal.core

import io.shoal.core.random.Noise
import io.shoal.core.wire.PublicKey
import java.io.Closeable
import java.io.IOException

/**
 * Predictions by the model in use on this device, with what the device keeps for itself. Needs no connection. It takes up a newer model when
 * one has come into use; what plans do does not touch it. If the model in use is damaged, the one before answers. Used by one thread at a time.
 *
 * @param trusted one of these keys must have signed the model's bundle; none: it is checked for damage alone
 * @param onReplaced told when another model answers from then on, before it does, by the thread that predicts
 */
@InternalShoalApi
public class Predictor @JvmOverloads constructor(
    private val storage: Storage,
    loader: GraphLoader,
    trusted: List<PublicKey>,
    private val onReplaced: (Current) -> Unit = {},
) : Closeable {
    private val loaded = LoadedBundle(storage, loader, windows = null, trusted, Noise.fromEntropy())
    private var model: Pair<String, Tensors>? = null
    private var answering: Current? = null

    /** The model that answers now, or null before there is one. */
    public val current: Current? get() = storage.current()

    /** The classes of the model that answered last, in the order of its probabilities; empty before one has. */
    public val classes: List<String> get() = answering?.let { loaded.verified(it.bundle).manifest.classes }.orEmpty()

    /** What the model that answered last has learned; empty before one has. */
    public val task: String get() = answering?.let { loaded.verified(it.bundle).manifest.task }.orEmpty()

    /**
     * Class probabilities (n, classes) float32 of examples [x] (n, window), or what the task answers in their place. What fails, but for [x] itself, is counted and reported.
     *
     * @throws ConfigException no model was released to this device and no run has finished on it, or its model was damaged and is not here
     *   again yet
     * @throws ShoalException the model cannot answer for these examples
     */
    public fun predict(x: Tensor): Tensor = try {
        attempt(x)
    } catch (error: DataException) {
        throw error
    } catch (error: Throwable) {
        count { storage.current() != null }
        throw error
    }

    /** One more failure, [where] it is one. It is not counted on a full disk, nor where the phone leaves meanwhile: the answer matters more. */
    private fun count(where: () -> Boolean = { true }) {
        try {
            if (where()) storage.saveFailures(storage.failures() + 1)
        } catch (_: IOException) {
        }
    }

    private fun attempt(x: Tensor): Tensor = try {
        answer(storage.current(), x)
    } catch (_: MissingBlob) { // another model came into use meanwhile and the old one was forgotten, or it is damaged
        try {
            answer(storage.current(), x)
        } catch (missing: MissingBlob) {
            stand(x, missing)
        }
    }

    /** The answer of the model before. */
    private fun stand(x: Tensor, missing: MissingBlob): Tensor = try {
        answer(storage.before() ?: throw missing, x).also { count() }
    } catch (_: MissingBlob) {
        throw ConfigException("the model of this device is damaged: the next job fetches it again", missing)
    }

    private fun answer(current: Current?, x: Tensor): Tensor {
        if (current == null) throw ConfigException("this device has no model yet: none was released to it, and no run has finished on it")
        val executor = loaded.executor(current.bundle)
        val tensors = model?.takeIf { it.first == current.model }?.second ?: loaded.tensors(current.model)
        model = current.model to tensors
        val before = answering
        answering = current
        if (before != null && keyOf(before) != keyOf(current)) onReplaced(current)
        return executor.predict(tensors, current.private, x)
    }

    private fun keyOf(current: Current) = listOf(current.release, current.bundle, current.model, current.run, current.kept)

    /** Lets the graphs go. */
    override fun close(): Unit = loaded.close()
}
