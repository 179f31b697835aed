package io.shoal.executorch

import io.shoal.core.GraphLoader
import io.shoal.core.Graphs
import io.shoal.core.InternalShoalApi
import io.shoal.core.wire.Bundle
import java.io.File

/**
 * Runs a bundle's programs with ExecuTorch: those for its XNNPACK backend where the bundle has them, else the portable ones. They run in the
 * threads that the process has for ExecuTorch, whose number stays what it is.
 *
 * @param folder where programs are written for the runtime to read, and deleted once it has
 * @param version the runtime's version. A program made by a newer exporter is refused: ExecuTorch promises that a program runs on the
 *   version that made it and on later ones
 */
@InternalShoalApi
public class ExecutorchLoader @JvmOverloads constructor(
    private val folder: File,
    private val version: String = VERSION,
) : GraphLoader {
    override val runtime: String get() = XNNPACK

    override fun load(bundle: Bundle): Graphs {
        bundle.require(XNNPACK, version)
        return ExecutorchGraphs(bundle, folder)
    }

    public companion object {
        /** The version of ExecuTorch that this library is built with (`gradle/libs.versions.toml`). */
        public const val VERSION: String = "1.5.1"

        /** The runtime's name in bundles and check-ins: programs that may delegate to XNNPACK. */
        public const val XNNPACK: String = "executorch"

        /** Programs of portable operators alone. */
        public const val PORTABLE: String = "executorch-portable"
    }
}
