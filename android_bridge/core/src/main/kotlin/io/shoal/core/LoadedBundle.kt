package io.shoal.core

import io.shoal.core.random.Noise
import io.shoal.core.wire.Bundle
import io.shoal.core.wire.Limits
import io.shoal.core.wire.PublicKey
import io.shoal.core.wire.decodeTensors
import java.io.Closeable

/**
 * The bundle in use: verified before anything in it is used, and loaded until another one takes its place. Without [windows] it only
 * predicts.
 */
internal class LoadedBundle(
    private val storage: Storage,
    private val loader: GraphLoader,
    private val windows: Windows?,
    private val trusted: List<PublicKey>,
    private val noise: Noise,
) : Closeable {
    private var bundle: Bundle? = null
    private var graphs: Graphs? = null
    private var executor: Executor? = null

    /** The digest of the bundle whose graphs are loaded, or empty. */
    val digest: String get() = if (executor == null) "" else bundle?.digest.orEmpty()

    /**
     * This bundle, verified.
     *
     * @throws BundleException it is not to be trusted
     * @throws MissingBlob it is not here
     */
    fun verified(name: String): Bundle {
        bundle?.let { if (it.digest == name) return it }
        close()
        return Bundle.unpack(read(name), trusted).also { bundle = it }
    }

    /**
     * The executor of this bundle; its graphs are loaded.
     *
     * @throws BundleException it is not to be trusted, or not for this device
     * @throws DataException the device's windows do not fit it
     * @throws MissingBlob it is not here
     */
    fun executor(name: String): Executor {
        val verified = verified(name)
        executor?.let { return it }
        val opened = loader.load(verified).also { graphs = it }
        return Executor(verified, opened, windows ?: noWindows(verified.manifest.window.shape), noise).also { executor = it }
    }

    /** The tensors of a blob. */
    fun tensors(name: String): Tensors = decodeTensors(read(name), Limits.RECEIVED).tensors

    /** Lets the graphs go. */
    override fun close() {
        val closing = graphs
        bundle = null
        executor = null
        graphs = null
        closing?.close()
    }

    private fun noWindows(shape: List<Int>): Windows {
        val (x, y) = Pair(Tensor.allocate(DType.FLOAT32, listOf(0) + shape), Tensor.of(LongArray(0)))
        return Windows(x, y, x, y)
    }

    private fun read(name: String): ByteArray = storage.blob(name) ?: throw MissingBlob(name)
}
