package io.shoal.executorch

import io.shoal.core.GraphLoader
import io.shoal.core.Graphs
import io.shoal.core.InternalShoalApi
import io.shoal.core.UnsupportedException
import io.shoal.core.wire.Bundle
import org.pytorch.executorch.Module
import java.io.File

/**
 * Loader of a bundle's programs for ExecuTorch: those for its XNNPACK backend if the bundle has
 * them, else the portable ones. They run in the process's threads for ExecuTorch, whose number
 * stays the same.
 *
 * @param folder folder into which programs are written for the runtime; they are deleted once it
 *   has read them
 * @param version version of the runtime. A program of a newer exporter is refused: ExecuTorch
 *   promises that a program runs on the version of its exporter and on later ones
 */
@InternalShoalApi
public class ExecutorchLoader @JvmOverloads constructor(
    private val folder: File,
    private val version: String = VERSION,
) : GraphLoader {
    override val runtime: String get() = XNNPACK

    override fun require() {
        try {
            Class.forName(Module::class.java.name) // which loads its native library
        } catch (error: LinkageError) {
            throw UnsupportedException("ExecuTorch does not run on this device: it needs a 64-bit processor (arm64 or x86-64): ${error.message}", error)
        }
    }

    override fun load(bundle: Bundle): Graphs {
        require()
        bundle.require(XNNPACK, version)
        return ExecutorchGraphs(bundle, folder)
    }

    public companion object {
        /** Version of ExecuTorch that this library is built with (`gradle/libs.versions.toml`). */
        public const val VERSION: String = "1.5.1"

        /** Name of the runtime in bundles and check-ins: programs that may delegate to XNNPACK. */
        public const val XNNPACK: String = "executorch"

        /** Name of programs of portable operators alone. */
        public const val PORTABLE: String = "executorch-portable"
    }
}
