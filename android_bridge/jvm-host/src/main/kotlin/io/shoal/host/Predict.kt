package io.shoal.host

import io.shoal.core.Current
import io.shoal.core.DType
import io.shoal.core.FolderStorage
import io.shoal.core.Graphs
import io.shoal.core.OwnerThread
import io.shoal.core.Packaged
import io.shoal.core.Predictor
import io.shoal.core.RoundMeasurement
import io.shoal.core.StorageWatcher
import io.shoal.core.Tensor
import io.shoal.core.Tensors
import io.shoal.core.WatchedStorage
import io.shoal.core.wire.Bundle
import io.shoal.core.wire.Names
import io.shoal.core.wire.PublicKey
import io.shoal.core.wire.decodeTensors
import io.shoal.executorch.ExecutorchLoader
import java.io.File
import java.util.concurrent.atomic.AtomicBoolean
import kotlin.concurrent.thread

private const val WARM = 50
private const val TIMES = 400

private object NoWatcher : StorageWatcher {
    override fun onModel(current: Current) = Unit

    override fun onRound(measurement: RoundMeasurement) = Unit
}

/**
 * Print the durations of predictions of one window in ms: `predict BUNDLE TRUST FOLDER BATCH`. The
 * six numbers on a line are the medians of the graph alone, on the runtime's thread, and of the
 * whole prediction as an app calls it; the first prediction, which verifies the bundle and loads
 * the program; and while another thread trains without a pause on BATCH, a tensor file of
 * `batch/NAME` and `hyper/NAME`: the median step, and the median and the 99th percentile of
 * predictions.
 */
public fun main(arguments: Array<String>) {
    val (bundleFile, trust, folder, batch) = arguments
    val (payload, keys) = Pair(File(bundleFile).readBytes(), PublicKey.parse(File(trust).readText()))
    val bundle = Bundle.unpack(payload, keys)
    val x = Tensor.allocate(DType.FLOAT32, listOf(maxOf(1, bundle.manifest.minBatch)) + bundle.manifest.window.shape)
    val owner = OwnerThread("shoal-answering") // as an app's Platform.kt has it
    val storage = WatchedStorage(FolderStorage(File(folder)), NoWatcher)
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
    repeat(TIMES) { // in turns, so that other load on the machine disturbs both alike
        alone += timed { graphs.run("predict", inputs) }
        whole += timed { predictor.predict(x) }
    }
    val trained = OwnerThread("shoal-training").owned(ExecutorchLoader(File(folder, "training"))).load(bundle)
    val training = Training(trained, bundle.initial + decodeTensors(File(batch).readBytes()).tensors)
    val during = ArrayList<Double>()
    val answer = predictor.predict(x)
    repeat(TIMES) {
        Thread.sleep(1, it * 997_000 % 999_999) // at any moment of a step
        var prediction: Tensor? = null
        during += timed { prediction = predictor.predict(x) }
        check(prediction == answer) { "training changed a prediction beside it" }
    }
    val steps = training.end()
    check(training.state == training.alone()) { "predictions changed a training beside them" }
    val numbers = listOf(alone, whole).map { it.sorted()[TIMES / 2] } + firstMs + steps.sorted()[steps.size / 2]
    println((numbers + during.sorted()[TIMES / 2] + during.sorted()[TIMES * 99 / 100]).joinToString(" "))
}

/** Training without a pause, on a thread of its own, starting from [tensors]. */
private class Training(private val graphs: Graphs, private val tensors: Tensors) {
    private val over = AtomicBoolean()
    private val steps = ArrayList<Double>()
    val state = HashMap(tensors)
    private val working = thread { while (!over.get()) steps += timed { step(state) } }

    private fun step(state: MutableMap<String, Tensor>) {
        for ((name, tensor) in graphs.run("step", state)) if (Names.roleOf(name) == Names.NEXT) state[Names.nameOf(name)] = tensor
    }

    /** Return the tensors after as many steps without other work beside them. */
    fun alone(): Map<String, Tensor> = HashMap(tensors).also { copy -> repeat(steps.size) { step(copy) } }

    /** End it, and return the duration of each step (ms). */
    fun end(): List<Double> {
        over.set(true)
        working.join()
        return steps
    }
}

private fun timed(act: () -> Unit): Double {
    val beganNs = System.nanoTime()
    act()
    return (System.nanoTime() - beganNs) / 1e6
}
