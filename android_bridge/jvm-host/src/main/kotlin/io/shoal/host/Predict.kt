package io.shoal.host

import io.shoal.core.Current
import io.shoal.core.DType
import io.shoal.core.FolderStorage
import io.shoal.core.OwnerThread
import io.shoal.core.Packaged
import io.shoal.core.Predictor
import io.shoal.core.RoundMeasured
import io.shoal.core.StorageWatcher
import io.shoal.core.Tensor
import io.shoal.core.WatchedStorage
import io.shoal.core.wire.Bundle
import io.shoal.core.wire.PublicKey
import io.shoal.executorch.ExecutorchLoader
import java.io.File

private const val WARM = 50
private const val TIMES = 400

private object Nobody : StorageWatcher {
    override fun onModel(current: Current) = Unit

    override fun onRound(measured: RoundMeasured) = Unit
}

/**
 * Says in ms what a prediction of one window takes: `predict BUNDLE TRUST FOLDER`. Three numbers on a line: the medians of the
 * graph alone, on the runtime's thread, and of the whole prediction as an app calls it, and the first prediction, which verifies the
 * bundle and loads the program.
 */
public fun main(arguments: Array<String>) {
    val (bundleFile, trust, folder) = arguments
    val (payload, keys) = Pair(File(bundleFile).readBytes(), PublicKey.parse(File(trust).readText()))
    val bundle = Bundle.unpack(payload, keys)
    val x = Tensor.allocate(DType.FLOAT32, listOf(maxOf(1, bundle.manifest.minBatch)) + bundle.manifest.window.shape)
    val owner = OwnerThread("shoal-executorch")
    val storage = WatchedStorage(FolderStorage(File(folder)), Nobody)
    Packaged.install(storage, payload, null, keys)
    val predictor = Predictor(storage, owner.owned(ExecutorchLoader(File(folder, "programs"))), keys)
    val firstMs = timed { predictor.predict(x) }
    val graphs = owner.owned(ExecutorchLoader(File(folder, "alone"))).load(bundle)
    val inputs = bundle.initial + ("batch/x" to x)
    repeat(WARM) {
        graphs.run("predict", inputs)
        predictor.predict(x)
    }
    val (alone, whole) = Pair(ArrayList<Double>(), ArrayList<Double>())
    repeat(TIMES) { // in turns: what else the machine does disturbs both alike
        alone += timed { graphs.run("predict", inputs) }
        whole += timed { predictor.predict(x) }
    }
    println("${alone.sorted()[TIMES / 2]} ${whole.sorted()[TIMES / 2]} $firstMs")
}

private fun timed(act: () -> Unit): Double {
    val beganNs = System.nanoTime()
    act()
    return (System.nanoTime() - beganNs) / 1e6
}
