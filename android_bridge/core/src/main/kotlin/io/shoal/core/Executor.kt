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
 * What carrying out a plan gave: the model it started from (a digest), metrics, the tensors of the update, and what the device keeps
 * afterwards: `private/NAME` and `column/COLUMN`, from which its next plan goes on, and `kept/ROLE/NAME`, what it made of that model for
 * itself alone, which is of use with that model only.
 */
@InternalShoalApi
public class PlanResult internal constructor(
    public val model: String,
    public val evaluated: Metrics,
    public val trained: Metrics,
    public val numSteps: Long,
    public val tensors: Tensors,
    public val private: Tensors,
)

/**
 * Carries out plans with one bundle's graphs over one device's windows. Knows verbs, no algorithm (`wire/SPEC.md`, 'Plans'). It checks no
 * policy and no signature: [Phone] does, and is what an app takes part with.
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
    /** What the bundle's models have learned. */
    internal val task: String get() = bundle.manifest.task
    private var job: Job? = null

    /** The SHA-256 of the windows that plans are carried out over; made once, when it is first asked for. */
    internal val windowsDigest: String by lazy { windowsDigest(this.windows) }
    private val windows = windows.fitting(bundle.manifest.window).takenFor(bundle.manifest)

    init {
        checkWindows("train", windows.trainX)
        checkWindows("test", windows.testX)
    }

    /**
     * Carries out every verb in order, starting from the tensors in [model] (shared, statistic, received) and what the device has kept.
     * [fetch] gives the tensors of a blob that the plan names; [between] is called before every run of a graph, and may throw;
     * [onStep] after each step of training, with how many are done and how many the plan has.
     *
     * @throws WrongLayout the model's tensors are not the manifest's
     * @throws DataException training is asked of a device with fewer than `min_batch` windows, or in batches larger than the graphs take
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
     * The same from the checkpoint [resumed] of this plan over these windows on, where it is not null; [private] is not used then.
     *
     * @throws Unfit the checkpoint cannot be of this plan
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
        val made = Job(bundle, graphs, windows, plan, fetch, noise, onStep, between)
        if (resumed == null) made.begin(model, fitting(private)) else made.goOn(resumed, model)
        job = made
        try {
            return made.carryOut()
        } finally {
            job = null
        }
    }

    /** What is done so far of the plan that is carried out, to be asked for from `between`. [seconds]: how long it took. */
    internal fun checkpoint(seconds: Double): Checkpoint = checkNotNull(job) { "no plan is carried out" }.checkpoint(seconds)

    private fun fitting(stored: Tensors): Tensors = usable(bundle.manifest.ofRole(Names.PRIVATE), stored, windows.numTrain)

    /** Of what the device has kept of the model, the tensors that this bundle has room for. */
    private fun keptOf(private: Tensors): Tensors {
        val layouts = bundle.manifest.ofRole(Names.SHARED, Names.STATISTIC, Names.MEMORY).associate { it.key to it.layout }
        return Names.part(private, Names.KEPT).filter { (key, tensor) ->
            layouts[key]?.let { it.dtype == tensor.dtype && it.shape == tensor.shape } ?: false
        }
    }

    /**
     * What the bundle's task answers (n, answers) float32, class probabilities or others in their place, of examples [x] (n, window), int64
     * where the bundle asks for ids, by the device's own model: what it was given, and has kept of it.
     *
     * @throws DataException examples of another shape, or none
     */
    public fun predict(model: Tensors, private: Tensors, x: Tensor): Tensor {
        val asked = examples(x, bundle.manifest.window, bundle.manifest.name)
        val held = bundle.initial + fitting(private) + model + keptOf(private)
        val minBatch = bundle.manifest.minBatch
        val rows = IntArray(maxOf(x.rows, minBatch)) { if (it < x.rows) it else 0 }
        val parts = evaluationRanges(rows.size, minBatch, graphs.maxBatch).map { part ->
            val outputs = graphs.run("predict", held + (Names.X to asked.take(rows.sliceArray(part))))
            outputs[Names.PROBABILITIES] ?: throw BundleException("graph 'predict' gives no ${Names.PROBABILITIES}")
        }
        return concatenate(parts).take(IntArray(x.rows) { it })
    }

    /**
     * The metrics of the device's own model, with what it has kept, over examples [x] (n, window) with the labels [y] of the task; of fewer
     * than the bundle's least batch there are none. [checkpoint] is called before each batch, and may throw.
     */
    internal fun evaluate(model: Tensors, private: Tensors, x: Tensor, y: Tensor, checkpoint: () -> Unit): Metrics {
        val minBatch = bundle.manifest.minBatch
        if (x.rows < minBatch) return Metrics()
        val held = bundle.initial + fitting(private) + model + keptOf(private)
        var (loss, correct) = Pair(0.0, 0.0)
        for (part in evaluationRanges(x.rows, minBatch, graphs.maxBatch)) {
            checkpoint()
            val rows = part.toList().toIntArray()
            val outputs = graphs.run(bundle.manifest.measuring, held + mapOf(Names.X to x.take(rows), Names.Y to y.take(rows)))
            loss += outputs.getValue(Names.metric("loss_sum")).toFloatArray().single()
            correct += outputs.getValue(Names.metric("num_correct")).toFloatArray().single()
        }
        return Metrics(x.rows.toLong(), loss, Math.rint(correct).toLong())
    }

    /**
     * Finds out whether a model can be used for predictions: it has the bundle's layout, and gives each class of a few of the device's own
     * windows a probability; of zeros, where it has none.
     *
     * @throws WrongLayout its tensors are not the manifest's, or its answer has another shape
     * @throws DataException its answer is none
     */
    internal fun tryOut(model: Tensors, private: Tensors) {
        val manifest = bundle.manifest
        checkLayout(model, manifest.received().map { it.layout }, "offered model")
        val x = windows.some(TRIED, manifest.window)
        val answer = predict(model, private, x)
        val expected = TensorLayout(Names.PROBABILITIES, DType.FLOAT32, listOf(x.rows) + manifest.answer)
        checkLayout(mapOf(Names.PROBABILITIES to answer), listOf(expected), "answer of the offered model")
        val numbers = answer.toFloatArray()
        if (manifest.task in Tasks.OF_PROBABILITIES && numbers.any { !(it >= 0f && it <= 1f + SLACK) }) {
            throw DataException("the offered model gives what is no probability")
        }
        if (numbers.any { !it.isFinite() }) throw DataException("the offered model gives what is no number")
    }

    private fun checkWindows(split: String, x: Tensor) {
        val manifest = bundle.manifest
        if (x.shape.drop(1) != manifest.window.shape) {
            throw DataException("$split windows have shape ${x.shape.drop(1)}, bundle ${manifest.name} expects ${manifest.window.shape}")
        }
    }

    private companion object {
        /** An offered model is tried on so many windows. */
        const val TRIED = 8

        /** How far a probability in float32 may be above 1. */
        const val SLACK = 1e-3f
    }
}
