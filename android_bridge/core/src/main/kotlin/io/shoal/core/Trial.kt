package io.shoal.core

import io.shoal.core.wire.Manifest
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.Policy
import io.shoal.core.wire.Tasks
import kotlin.math.ln

/** A model with the executor that answers with it, and what the device has kept for itself. */
internal class Tried(private val executor: Executor, private val model: Tensors, private val private: Tensors) {
    /** What the model has learned. */
    val task: String get() = executor.task

    /** The metrics over examples [x] with the labels [y] of the task. */
    fun evaluate(x: Tensor, y: Tensor, checkpoint: () -> Unit): Metrics = executor.evaluate(model, private, x, y, checkpoint)

    /** Class probabilities (n, classes) of examples [x], or what the task answers in their place. */
    fun predict(x: Tensor): Tensor = executor.predict(model, private, x)

    /**
     * Refuses a model that cannot be used for predictions.
     *
     * @throws WireException its tensors are not the manifest's, or its answer has another shape
     * @throws DataException its answer is none
     */
    fun tryOut(): Unit = executor.tryOut(model, private)
}

/** What is found out about a model before it is taken into use: how well it answers, and how fast (`edge_client/models/trial.py`). */
internal class Trial(private val windows: Windows, private val policy: Policy) {
    /**
     * The windows that neither training nor a memory has seen: the test windows. What a plan holds out of the training windows is not among
     * them: other plans train on it, and a memory holds it with its labels. None where the owner does not permit evaluations, or asks for
     * more windows behind one.
     */
    fun heldBack(manifest: Manifest): Pair<Tensor, Tensor> {
        val windows = windows.takenFor(manifest)
        val (x, y) = Pair(windows.testX, windows.testY)
        val permitted = policy.verbs?.contains("evaluate") != false && y.rows >= policy.minWindows
        return if (permitted) Pair(x, y) else Pair(x.take(IntArray(0)), y.take(IntArray(0)))
    }

    /** Sums over windows; [checkpoint] is called before each batch, and may throw. */
    fun evaluate(tried: Tried, x: Tensor, y: Tensor, checkpoint: () -> Unit): Metrics {
        if (tried.task != Tasks.CLASSIFICATION) return tried.evaluate(x, y, checkpoint)
        val labels = y.toLongArray()
        var (loss, correct) = Pair(0.0, 0L)
        for (begin in labels.indices step BATCH) {
            checkpoint()
            val rows = IntArray(minOf(BATCH, labels.size - begin)) { begin + it }
            val answer = tried.predict(x.take(rows))
            val (numbers, classes) = Pair(answer.toFloatArray(), answer.shape[1])
            for ((at, row) in rows.withIndex()) {
                val own = numbers.copyOfRange(at * classes, (at + 1) * classes)
                val label = labels[row].toInt()
                val probability = own[label].toDouble()
                loss -= ln(if (probability.isNaN()) LEAST_PROBABILITY else probability.coerceIn(LEAST_PROBABILITY, 1.0))
                if (own.indices.maxByOrNull { own[it] } == label) correct++
            }
        }
        return Metrics(labels.size.toLong(), loss, correct)
    }

    /** Whether the device has a window to try a model on. */
    val hasWindows: Boolean get() = windows.some.rows > 0

    /** What a prediction of one window takes: the median of a few. */
    fun latencyMs(tried: Tried, manifest: Manifest): Double {
        val x = windows.some(1, manifest.window)
        val took = List(TIMES) {
            val beganNs = System.nanoTime()
            tried.predict(x)
            (System.nanoTime() - beganNs) / 1e6
        }
        return Math.rint(took.sorted()[TIMES / 2] * 1000) / 1000
    }

    private companion object {
        /** The loss of a window counts no smaller probability of its class. */
        const val LEAST_PROBABILITY = 1e-7
        const val TIMES = 5
        const val BATCH = 64
    }
}
