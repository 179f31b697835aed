package io.shoal.core

import io.shoal.core.random.Noise
import io.shoal.core.wire.Annotate
import io.shoal.core.wire.Apply
import io.shoal.core.wire.Bundle
import io.shoal.core.wire.Choose
import io.shoal.core.wire.Evaluate
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.Names
import io.shoal.core.wire.Plan
import io.shoal.core.wire.Protect
import io.shoal.core.wire.Respond
import io.shoal.core.wire.Train

/**
 * What carrying out a plan gave: the model it started from (a digest), metrics, the tensors of the update, and what the device keeps
 * afterwards: `private/NAME`, `column/COLUMN`, and until its next plan `kept/ROLE/NAME` of a model that it has trained for itself alone.
 */
internal class PlanResult(
    val model: String,
    val evaluated: Metrics,
    val trained: Metrics,
    val numSteps: Long,
    val tensors: Tensors,
    val private: Tensors,
)

/**
 * Carries out plans with one bundle's graphs over one device's windows. Knows verbs, no algorithm (`wire/SPEC.md`, 'Plans').
 *
 * @throws DataException the windows do not fit the bundle
 */
internal class Executor(
    private val bundle: Bundle,
    private val graphs: Graphs,
    private val windows: Windows,
    private val noise: Noise = Noise.fromEntropy(),
) {
    init {
        checkWindows("train", windows.trainX, windows.trainY)
        checkWindows("test", windows.testX, windows.testY)
    }

    /**
     * Carries out every verb in order, starting from the tensors in [model] (shared, statistic, received) and what the device has kept.
     * [fetch] gives the tensors of a blob that the plan names.
     *
     * @throws WrongLayout the model's tensors are not the manifest's
     * @throws DataException training is asked of a device with fewer than `min_batch` windows, or in batches larger than the graphs take
     */
    fun execute(plan: Plan, model: Tensors, private: Tensors, fetch: (String) -> Tensors): PlanResult {
        val job = Job(bundle, graphs, windows, plan, private.filterKeys { Names.roleOf(it) != Names.KEPT }, fetch, noise)
        job.receive(plan.model, model)
        for (verb in plan.verbs) {
            when (verb) {
                is Train -> job.train(verb)
                is Evaluate -> job.evaluate(verb)
                is Choose -> job.choose(verb)
                is Annotate -> job.annotate(verb)
                is Apply -> job.apply(verb)
                is Respond -> job.respond(verb)
                is Protect -> job.protect(verb)
            }
        }
        return job.finish()
    }

    /** Class probabilities (n, classes) float32 of examples [x] (n, window) by the device's own model: what it was given, and has kept. */
    fun predict(model: Tensors, private: Tensors, x: Tensor): Tensor {
        val held = bundle.initial + private + model + Names.part(private, Names.KEPT)
        val minBatch = bundle.manifest.minBatch
        val rows = IntArray(maxOf(x.rows, minBatch)) { if (it < x.rows) it else 0 }
        val parts = evaluationRanges(rows.size, minBatch, graphs.maxBatch).map { part ->
            graphs.run("predict", held + (Names.X to x.take(rows.sliceArray(part)))).getValue(Names.PROBABILITIES)
        }
        return concatenate(parts).take(IntArray(x.rows) { it })
    }

    private fun checkWindows(split: String, x: Tensor, y: Tensor) {
        val manifest = bundle.manifest
        if (x.shape.drop(1) != manifest.window.shape) {
            throw DataException("$split windows have shape ${x.shape.drop(1)}, bundle ${manifest.name} expects ${manifest.window.shape}")
        }
        val unknown = y.toLongArray().firstOrNull { it !in manifest.classes.indices }
        if (unknown != null) {
            throw DataException("$split labels hold $unknown, bundle ${manifest.name} has classes 0..${manifest.classes.size - 1}")
        }
    }
}
