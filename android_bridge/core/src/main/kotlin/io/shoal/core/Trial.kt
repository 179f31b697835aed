package io.shoal.core

import io.shoal.core.wire.Evaluate
import io.shoal.core.wire.Manifest
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.Plan
import io.shoal.core.wire.Policy
import io.shoal.core.wire.Tasks
import io.shoal.core.wire.Train
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
     * @throws DataException its answer is none, or the device has no window to ask it about
     */
    fun tryOut(): Unit = executor.tryOut(model, private)
}

/** What is found out about a model before it is taken into use: how well it answers, and how fast (`edge_client/trial.py`). */
internal class Trial(private val windows: Windows, private val policy: Policy) {
    /**
     * The windows that no training saw: the test windows; without any, those that the plans of this device hold out. None where its owner
     * does not permit evaluations, or asks for more windows behind one.
     */
    fun heldBack(plan: Plan?, manifest: Manifest): Pair<Tensor, Tensor> {
        val windows = windows.takenFor(manifest)
        var (x, y) = Pair(windows.testX, windows.testY)
        if (y.rows == 0) {
            val share = plan?.verbs.orEmpty().maxOfOrNull { if (it is Train) it.holdout else if (it is Evaluate) it.holdout else 0.0 } ?: 0.0
            val mask = heldOut(windows.numTrain, share)
            val chosen = mask.indices.filter { mask[it] }.toIntArray()
            x = windows.trainX.take(chosen)
            y = windows.trainY.take(chosen)
        }
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

    /** What a prediction of one window takes: the median of a few. */
    fun latencyMs(tried: Tried): Double {
        val x = windows.some.take(IntArray(1))
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
