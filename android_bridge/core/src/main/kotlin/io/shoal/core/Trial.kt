package io.shoal.core

import io.shoal.core.wire.Manifest
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.Policy
import io.shoal.core.wire.Tasks
import kotlin.math.ln
import kotlin.math.sqrt

/** Model on trial, with its executor and the device's own tensors. */
internal class Candidate(private val executor: Executor, private val model: Tensors, private val private: Tensors) {
    /** Task of the model. */
    val task: String get() = executor.task

    /** Return the metrics over examples [x] with the labels [y] of the task. */
    fun evaluate(x: Tensor, y: Tensor, checkpoint: () -> Unit): Metrics = executor.evaluate(model, private, x, y, checkpoint)

    /** Return class probabilities (n, classes) of examples [x], or the numbers of another task. */
    fun predict(x: Tensor): Tensor = executor.predict(model, private, x)

    /**
     * Check that the model can be used for predictions.
     *
     * @throws WireException its tensors are not the manifest's, or its answer has another shape
     * @throws DataException its answer is not a number, or not a probability
     */
    fun tryOut(): Unit = executor.tryOut(model, private)
}

/**
 * Trial of a model before it comes into use, and its comparison with the model before later
 * (`edge_client/models/trial.py`).
 */
internal class Trial(private val windows: Windows, private val policy: Policy) {
    /**
     * Return the test windows and their labels. Neither training nor a memory has seen them.
     * Windows that a plan holds out of the training windows are not used: other plans train on
     * them, and a memory stores them with their labels. The result is empty if the policy forbids
     * evaluations or requires more windows for one.
     */
    fun heldBack(manifest: Manifest): Pair<Tensor, Tensor> {
        val windows = windows.forTask(manifest)
        val (x, y) = Pair(windows.testX, windows.testY)
        val permitted = policy.minSum == null && policy.verbs?.contains("evaluate") != false && y.rows >= policy.minWindows
        return if (permitted) Pair(x, y) else Pair(x.take(IntArray(0)), y.take(IntArray(0)))
    }

    /**
     * Return the metrics over windows. [checkpoint] is called before each batch; an exception from
     * it ends the evaluation.
     */
    fun evaluate(candidate: Candidate, x: Tensor, y: Tensor, checkpoint: () -> Unit): Metrics {
        if (candidate.task != Tasks.CLASSIFICATION) return candidate.evaluate(x, y, checkpoint)
        val (losses, correct) = scores(candidate, x, y, checkpoint)
        return Metrics(losses.size.toLong(), losses.sum(), correct)
    }

    /** True if at least [LEAST_FRESH] test windows began after a time. */
    fun hasFresh(sinceS: Double): Boolean = windows.testBeginsS.count { it > sinceS } >= LEAST_FRESH

    /**
     * Return the newest test windows since a time and their labels, as [heldBack] has them. The
     * result is empty if there are fewer than [LEAST_FRESH] or than the policy's minimum, or if the
     * times of windows are not known.
     */
    fun fresh(manifest: Manifest, sinceS: Double): Pair<Tensor, Tensor> {
        val (x, y) = heldBack(manifest)
        val beginsS = windows.testBeginsS.takeIf { it.size == y.rows } ?: DoubleArray(0)
        val chosen = beginsS.indices.filter { beginsS[it] > sinceS }.takeLast(MOST_FRESH)
        val rows = if (chosen.size < maxOf(LEAST_FRESH.toLong(), policy.minWindows)) IntArray(0) else chosen.toIntArray()
        return Pair(x.take(rows), y.take(rows))
    }

    /** Return the losses of classified windows. [checkpoint] is called before each batch. */
    fun losses(candidate: Candidate, x: Tensor, y: Tensor, checkpoint: () -> Unit): DoubleArray = scores(candidate, x, y, checkpoint).first

    /** Return the losses of classified windows, and the number of correct answers. */
    private fun scores(candidate: Candidate, x: Tensor, y: Tensor, checkpoint: () -> Unit): Pair<DoubleArray, Long> {
        val labels = y.toLongArray()
        val losses = DoubleArray(labels.size)
        var correct = 0L
        for (begin in labels.indices step BATCH) {
            checkpoint()
            val rows = IntArray(minOf(BATCH, labels.size - begin)) { begin + it }
            val answer = candidate.predict(x.take(rows))
            val (numbers, classes) = Pair(answer.toFloatArray(), answer.shape[1])
            for ((at, row) in rows.withIndex()) {
                val probabilities = numbers.copyOfRange(at * classes, (at + 1) * classes)
                val label = labels[row].toInt()
                val probability = probabilities[label].toDouble()
                losses[row] = -ln(if (probability.isNaN()) LEAST_PROBABILITY else probability.coerceIn(LEAST_PROBABILITY, 1.0))
                if (probabilities.indices.maxByOrNull { probabilities[it] } == label) correct++
            }
        }
        return Pair(losses, correct)
    }

    /** True if the device has a window to try a model on. */
    val hasWindows: Boolean get() = windows.some.rows > 0

    /** Return the duration of a prediction of one window: the median of a few (ms). */
    fun latencyMs(candidate: Candidate, manifest: Manifest): Double {
        val x = windows.some(1, manifest.window)
        val durationsMs = List(TIMES) {
            val beganNs = System.nanoTime()
            candidate.predict(x)
            (System.nanoTime() - beganNs) / 1e6
        }
        return Math.rint(durationsMs.sorted()[TIMES / 2] * 1000) / 1000
    }

    companion object {
        /**
         * Return by how much the mean loss of the [other] model is lower than that of the model in
         * use, and the standard error of that, from their losses over the same windows, at least
         * two.
         */
        fun gain(used: DoubleArray, other: DoubleArray): Pair<Double, Double> {
            val apart = DoubleArray(used.size) { used[it] - other[it] }
            val mean = apart.average()
            return Pair(mean, sqrt(apart.sumOf { (it - mean) * (it - mean) } / (apart.size - 1) / apart.size))
        }

        /** Lower limit of a class probability in the loss of a window. */
        private const val LEAST_PROBABILITY = 1e-7
        private const val TIMES = 5
        private const val BATCH = 64

        /** Limits of the number of windows by which a device goes back to the model before. */
        private const val LEAST_FRESH = 8
        private const val MOST_FRESH = 256
    }
}
