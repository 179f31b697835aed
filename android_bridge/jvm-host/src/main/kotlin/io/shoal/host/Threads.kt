package io.shoal.host

import io.shoal.core.DType
import io.shoal.core.Tensor
import io.shoal.core.wire.Bundle
import io.shoal.executorch.ExecutorchLoader
import org.pytorch.executorch.Module
import java.io.File

/** Return the number of ExecuTorch's threads in this process. */
private external fun threadsOfTheProcess(): Int

/**
 * Print the number of ExecuTorch's threads after an app has loaded a model of its own with THREADS
 * of them, and after the library has loaded and run a bundle's model: `threads BUNDLE FOLDER
 * THREADS`. Two numbers on a line.
 */
public fun main(arguments: Array<String>) {
    val (bundleFile, folder, threads) = arguments
    val bundle = Bundle.unpack(File(bundleFile).readBytes())
    val (_, program) = bundle.program("predict", ExecutorchLoader.XNNPACK, ExecutorchLoader.PORTABLE)
    val appModel = File(folder, "own.pte").also { it.writeBytes(program) }
    Module.load(appModel.path, Module.LOAD_MODE_FILE, threads.toInt())
    val before = threadsOfTheProcess()
    ExecutorchLoader(File(folder, "programs")).load(bundle).use { graphs ->
        val x = Tensor.allocate(DType.FLOAT32, listOf(maxOf(1, bundle.manifest.minBatch)) + bundle.manifest.window.shape)
        graphs.run("predict", bundle.initial + ("batch/x" to x))
    }
    println("$before ${threadsOfTheProcess()}")
}
