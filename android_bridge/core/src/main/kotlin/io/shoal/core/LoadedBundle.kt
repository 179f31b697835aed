package io.shoal.core

import io.shoal.core.random.Noise
import io.shoal.core.wire.Bundle
import io.shoal.core.wire.Manifest
import io.shoal.core.wire.PublicKey
import io.shoal.core.wire.decodeTensors
import java.io.Closeable

/** The bundle in use: verified before anything in it is used, and loaded until another one takes its place. */
internal class LoadedBundle(
    private val storage: Storage,
    private val loader: GraphLoader,
    private val windows: Windows,
    private val trusted: PublicKey?,
    private val noise: Noise,
) : Closeable {
    private var graphs: Graphs? = null
    private var executor: Executor? = null

    /** The digest of the bundle in use, or empty. */
    var digest: String = ""
        private set

    /**
     * The executor of this bundle. [onLoad] hears of one that was loaded for it.
     *
     * @throws StaleBundle it is older than the one of its name in [versions]
     * @throws BundleException it is not to be trusted, or not for this device
     */
    fun executor(name: String, versions: Map<String, Long>, onLoad: (Manifest) -> Unit = {}): Executor {
        executor?.let { if (digest == name) return it }
        val bundle = Bundle.unpack(read(name), trusted)
        Bundle.checkVersion(bundle.manifest, versions)
        close()
        val opened = loader.load(bundle).also { graphs = it }
        executor = Executor(bundle, opened, windows, noise)
        digest = bundle.digest
        onLoad(bundle.manifest)
        return executor!!
    }

    /** The tensors of a blob. */
    fun tensors(name: String): Tensors = decodeTensors(read(name)).tensors

    override fun close() {
        graphs?.close()
        graphs = null
        executor = null
        digest = ""
    }

    private fun read(name: String): ByteArray = checkNotNull(storage.blob(name)) { "blob $name was fetched before work began" }
}
