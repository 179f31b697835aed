package io.shoal.core

import io.shoal.core.random.Noise
import io.shoal.core.wire.Bundle
import io.shoal.core.wire.Limits
import io.shoal.core.wire.PublicKey
import io.shoal.core.wire.decodeTensors
import java.io.Closeable

/**
 * Bundle in use, verified before any use, and loaded until another bundle replaces it. Without
 * [windows] it can only predict.
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

    /** Digest of the bundle whose graphs are loaded, or empty. */
    val digest: String get() = if (executor == null) "" else bundle?.digest.orEmpty()

    /**
     * Return this bundle, verified.
     *
     * @throws BundleException the bundle is not trusted
     * @throws MissingBlobException the bundle is not here
     */
    fun verified(name: String): Bundle {
        bundle?.let { if (it.digest == name) return it }
        close()
        return Bundle.unpack(read(name), trusted).also { bundle = it }
    }

    /**
     * Return the executor of this bundle, with its graphs loaded.
     *
     * @throws BundleException the bundle is not trusted, or not for this device
     * @throws DataException the device's windows do not fit the bundle
     * @throws MissingBlobException the bundle is not here
     */
    fun executor(name: String): Executor {
        val verified = verified(name)
        executor?.let { return it }
        val opened = loader.load(verified).also { graphs = it }
        return Executor(verified, opened, windows ?: noWindows(verified.manifest.window.shape), noise).also { executor = it }
    }

    /** Return the tensors of a blob. */
    fun tensors(name: String): Tensors = decodeTensors(read(name), Limits.RECEIVED).tensors

    /** Release the graphs. */
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

    private fun read(name: String): ByteArray = storage.blob(name) ?: throw MissingBlobException(name)
}
