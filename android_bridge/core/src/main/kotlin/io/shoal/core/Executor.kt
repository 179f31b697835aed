package io.shoal.core

import io.shoal.core.random.Noise
import io.shoal.core.wire.Bundle
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.Names
import io.shoal.core.wire.Plan
import io.shoal.core.wire.Tasks
import io.shoal.core.wire.TensorLayout
import io.shoal.core.wire.checkLayout

/**
 * Result of a plan.
 *
 * @property model digest of the model that the plan started from
 * @property tensors tensors of the update
 * @property private tensors that the device stores: `private/NAME` and `column/COLUMN`, from which
 *   its next plan starts, and `personal/ROLE/NAME`, the personal model, which is used with [model]
 *   alone
 */
@InternalShoalApi
public class PlanResult internal constructor(
    public val model: String,
    public val evaluated: Metrics,
    public val trained: Metrics,
    public val numSteps: Long,
    public val tensors: Tensors,
    public val private: Tensors,
    internal val numbers: Map<String, FloatArray>? = null,
    internal val node: String = "",
)

/**
 * Executor of plans with one bundle's graphs over one device's windows. It knows verbs and no
 * algorithm (`wire/SPEC.md`, 'Plans'). It checks no policy and no signature: [Phone] does, and is
 * the class for apps.
 *
 * @throws DataException the windows do not fit the bundle
 */
@InternalShoalApi
public class Executor(
    private val bundle: Bundle,
    private val graphs: Graphs,
    windows: Windows,
    private val noise: Noise = Noise.fromEntropy(),
) {
    /** Task of the bundle. */
    internal val task: String get() = bundle.manifest.task
    private var job: PlanExecution? = null

    /** SHA-256 of the windows that plans are carried out over; computed at the first access. */
    internal val windowsDigest: String by lazy { windowsDigest(this.windows) }
    private val windows = windows.fitting(bundle.manifest.window).forTask(bundle.manifest)

    init {
        checkWindows("train", windows.trainX)
        checkWindows("test", windows.testX)
    }

    /**
     * Carry out every verb in order, starting from the tensors in [model] (shared, statistic,
     * received) and the device's [private] tensors.
     *
     * @param fetch function that returns the tensors of a blob that the plan names
     * @param onStep called after each step of training, with the number of finished steps and of
     *   all steps
     * @param between called before every run of a graph; an exception from it ends the work
     * @throws WrongLayoutException the model's tensors are not the manifest's
     * @throws DataException the device has fewer than `min_batch` windows to train on, or a batch
     *   is larger than the graphs accept
     */
    public fun execute(
        plan: Plan,
        model: Tensors,
        private: Tensors,
        fetch: (String) -> Tensors,
        onStep: (Long, Long) -> Unit = { _, _ -> },
        between: () -> Unit = {},
    ): PlanResult = execute(plan, model, private, fetch, onStep, null, between)

    /**
     * Carry out a plan, from the checkpoint [resumed] on if it is not null. [private] is not used
     * then.
     *
     * @throws UnfitCheckpointException the checkpoint cannot be of this plan
     */
    internal fun execute(
        plan: Plan,
        model: Tensors,
        private: Tensors,
        fetch: (String) -> Tensors,
        onStep: (Long, Long) -> Unit,
        resumed: Checkpoint?,
        between: () -> Unit,
    ): PlanResult {
        val execution = PlanExecution(bundle, graphs, windows, plan, fetch, noise, onStep, between)
        if (resumed == null) execution.begin(model, fitting(private)) else execution.resume(resumed, model)
        job = execution
        try {
            return execution.carryOut()
        } finally {
            job = null
        }
    }

    /**
     * Return a checkpoint of the current plan. Call it only from `between`. [seconds] is the
     * duration of the work.
     */
    internal fun checkpoint(seconds: Double): Checkpoint = checkNotNull(job) { "no plan is in work" }.checkpoint(seconds)

    private fun fitting(stored: Tensors): Tensors = usable(bundle.manifest.ofRole(Names.PRIVATE), stored, windows.numTrain)

    /** Return the tensors of the personal model that fit this bundle. */
    private fun personalTensors(private: Tensors): Tensors {
        val layouts = bundle.manifest.ofRole(Names.SHARED, Names.STATISTIC, Names.MEMORY).associate { it.key to it.layout }
        return Names.part(private, Names.PERSONAL).filter { (key, tensor) ->
            layouts[key]?.let { it.dtype == tensor.dtype && it.shape == tensor.shape } ?: false
        }
    }

    /**
     * Return the answers (n, answers) float32 of the device's own model for examples [x] (n,
     * window): class probabilities, or the numbers of another task. [x] is int64 if the bundle
     * takes ids.
     *
     * @throws DataException the examples have another shape, or there are none
     */
    public fun predict(model: Tensors, private: Tensors, x: Tensor): Tensor {
        val examples = examples(x, bundle.manifest.window, bundle.manifest.name)
        val tensors = bundle.initial + fitting(private) + model + personalTensors(private)
        val minBatch = bundle.manifest.minBatch
        val rows = IntArray(maxOf(x.rows, minBatch)) { if (it < x.rows) it else 0 }
        val parts = evaluationRanges(rows.size, minBatch, graphs.maxBatch).map { part ->
            val outputs = graphs.run("predict", tensors + (Names.X to examples.take(rows.sliceArray(part))))
            outputs[Names.PROBABILITIES] ?: throw BundleException("graph 'predict' has no output ${Names.PROBABILITIES}")
        }
        return concatenate(parts).take(IntArray(x.rows) { it })
    }

    /**
     * Return the metrics of the device's own model over examples [x] (n, window) with their labels
     * [y]. They are empty if there are fewer examples than the bundle's smallest batch.
     * [checkpoint] is called before each batch; an exception from it ends the evaluation.
     */
    internal fun evaluate(model: Tensors, private: Tensors, x: Tensor, y: Tensor, checkpoint: () -> Unit): Metrics {
        val minBatch = bundle.manifest.minBatch
        if (x.rows < minBatch) return Metrics()
        val tensors = bundle.initial + fitting(private) + model + personalTensors(private)
        var (loss, correct) = Pair(0.0, 0.0)
        for (part in evaluationRanges(x.rows, minBatch, graphs.maxBatch)) {
            checkpoint()
            val rows = part.toList().toIntArray()
            val outputs = graphs.run(bundle.manifest.measuring, tensors + mapOf(Names.X to x.take(rows), Names.Y to y.take(rows)))
            loss += outputs.getValue(Names.metric("loss_sum")).toFloatArray().single()
            correct += outputs.getValue(Names.metric("num_correct")).toFloatArray().single()
        }
        return Metrics(x.rows.toLong(), loss, Math.rint(correct).toLong())
    }

    /**
     * Check that a model can be used for predictions: it has the bundle's layout, and a valid
     * answer for a few windows of the device, or for zeros if the device has no window.
     *
     * @throws WrongLayoutException its tensors are not the manifest's, or its answer has another shape
     * @throws DataException its answer is not a number, or not a probability
     */
    internal fun tryOut(model: Tensors, private: Tensors) {
        val manifest = bundle.manifest
        checkLayout(model, manifest.received().map { it.layout }, "offered model")
        val x = windows.some(TRIAL_WINDOWS, manifest.window)
        val answer = predict(model, private, x)
        val expected = TensorLayout(Names.PROBABILITIES, DType.FLOAT32, listOf(x.rows) + manifest.answer)
        checkLayout(mapOf(Names.PROBABILITIES to answer), listOf(expected), "answer of the offered model")
        val numbers = answer.toFloatArray()
        if (manifest.task in Tasks.OF_PROBABILITIES && numbers.any { !(it >= 0f && it <= 1f + SLACK) }) {
            throw DataException("The model must answer with probabilities, and gives others")
        }
        if (numbers.any { !it.isFinite() }) throw DataException("The model must answer with finite numbers, and gives others")
    }

    private fun checkWindows(split: String, x: Tensor) {
        val manifest = bundle.manifest
        if (x.shape.drop(1) != manifest.window.shape) {
            throw DataException("$split windows must have shape ${manifest.window.shape} for bundle ${manifest.name}, got ${x.shape.drop(1)}")
        }
    }

    private companion object {
        /** Maximum number of windows that an offered model is tried on. */
        const val TRIAL_WINDOWS = 8

        /** Maximum amount by which a probability in float32 may exceed 1. */
        const val SLACK = 1e-3f
    }
}
