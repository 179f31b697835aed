package io.shoal.core

import io.shoal.core.random.Generator
import io.shoal.core.random.Noise
import io.shoal.core.secret.DeviceSurvey
import io.shoal.core.secret.nodeOf
import io.shoal.core.wire.Annotate
import io.shoal.core.wire.Apply
import io.shoal.core.wire.Bundle
import io.shoal.core.wire.Choose
import io.shoal.core.wire.Evaluate
import io.shoal.core.wire.Mask
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.Names
import io.shoal.core.wire.Plan
import io.shoal.core.wire.Protect
import io.shoal.core.wire.Respond
import io.shoal.core.wire.SurveySum
import io.shoal.core.wire.TellGroup
import io.shoal.core.wire.Train
import io.shoal.core.wire.checkLayout

/** State of a plan in work, with a function for each verb. */
internal class PlanExecution(
    bundle: Bundle,
    private val graphs: Graphs,
    private val windows: Windows,
    private val plan: Plan,
    private val fetch: (String) -> Tensors,
    private val noise: Noise,
    private val onStep: (Long, Long) -> Unit,
    private val between: () -> Unit,
) {
    private val manifest = bundle.manifest
    private val initial = bundle.initial
    private val random = Generator(plan.seed, checksum(plan.deviceId))

    /**
     * Hyper-parameters: the bundle's, replaced by those of the plan's training. They are the same
     * in every verb.
     */
    private val hyper: Tensors = plan.verbs.filterIsInstance<Train>().fold(manifest.hyper) { all, verb -> all + verb.hyper }
        .entries.associate { (name, value) -> Names.hyper(name) to Tensor.scalar(value.toFloat()) }

    /** All tensors that graphs may read, by name. */
    private val tensors = HashMap(initial)

    /** Tensors of the bundle and the model, which no checkpoint needs. */
    private val receivedTensors = HashMap(initial)
    private var model: Tensors = emptyMap()
    private var modelDigest = ""
    private val changed = LinkedHashSet<String>()
    private val tuned = LinkedHashSet<String>()
    private val protected = HashMap<String, Tensor>()
    private val sent = HashMap<String, Tensor>()
    private var evaluated = Metrics()
    private var trained = Metrics()
    private var numSteps = 0L
    private var verbs = 0
    private var runs = 0L
    private var within = Within()
    private var resumed = false
    private var numbers: Map<String, FloatArray>? = null
    private var node = ""

    /** Number of steps of all training in the plan. */
    private val plannedSteps = plan.verbs.filterIsInstance<Train>().sumOf { verb ->
        val examples = windows.numTrain - numHeldOut(windows.numTrain, verb.holdout)
        if (examples < maxOf(verb.least, 1L)) 0L else numTrainingBatches(verb, examples, windows.numUnlabelled, manifest.minBatch)
    }

    /** Start from the plan's [model] and the device's [private] tensors. */
    fun begin(model: Tensors, private: Tensors) {
        tensors += private
        receive(plan.model, model)
    }

    /**
     * Carry out the remaining verbs, in order.
     *
     * @throws UnfitCheckpointException the checkpoint that the work resumed from cannot be of this plan
     */
    fun carryOut(): PlanResult {
        for (verb in plan.verbs.drop(verbs)) {
            when (verb) {
                is Train -> train(verb)
                is Evaluate -> evaluate(verb)
                is Choose -> choose(verb)
                is Annotate -> annotate(verb)
                is Apply -> apply(verb)
                is Respond -> respond(verb)
                is Protect -> protect(verb)
                is SurveySum -> numbers = DeviceSurvey.of(tensors).numbers(verb)
                is TellGroup -> node = nodeOf(DeviceSurvey.of(tensors).coordinates(verb.scale), verb.planes)
                is Mask -> {} // the agent masks the result
            }
            verbs++
            within = Within()
        }
        return finish()
    }

    /**
     * Return a checkpoint of the work so far, which does not change with later work. Call it only
     * from [between]. [seconds] is the duration of the work.
     */
    fun checkpoint(seconds: Double): Checkpoint {
        val place = Place(verbs, within.batches, runs, numSteps, modelDigest, random.state(), seconds, changed.sorted(), tuned.sorted())
        val planTensors = tensors.filter { (key, tensor) -> receivedTensors[key] !== tensor }
        return Checkpoint(place, planTensors, HashMap(sent), HashMap(protected), evaluated, trained, within.copy())
    }

    /**
     * Resume from a checkpoint instead of the start of the plan. [model] is the plan's.
     *
     * @throws UnfitCheckpointException the checkpoint cannot be of this plan
     */
    fun resume(from: Checkpoint, model: Tensors) {
        val place = from.place
        checkFits(from)
        receive(place.model, if (place.model == plan.model) model else fetch(place.model))
        tensors += from.tensors
        sent += from.sent
        protected += from.protected
        changed += place.changed
        tuned += place.tuned
        evaluated = from.evaluated
        trained = from.trained
        numSteps = place.numSteps
        verbs = place.verb
        runs = place.runs
        within = from.within.copy()
        random.put(place.random)
        resumed = true
    }

    private fun checkFits(from: Checkpoint) {
        val place = from.place
        val models = plan.verbs.filterIsInstance<Choose>().flatMap { it.models } + plan.model
        if (place.verb >= plan.verbs.size || place.model !in models) {
            throw UnfitCheckpointException("it is at verb ${place.verb} with model ${place.model.take(12)}, and the plan has ${plan.verbs.size} verbs and other models")
        }
        if (from.within.order?.any { it !in 0 until windows.numTrain } == true) {
            throw UnfitCheckpointException("its order of windows is not one of ${windows.numTrain} windows")
        }
        val layouts = manifest.tensors.associate { it.key to it.layout }
        for ((key, tensor) in from.tensors.entries + from.protected.entries) {
            val fits = when (Names.roleOf(key)) {
                Names.COLUMN -> tensor.shape.firstOrNull() == windows.numTrain
                Names.RESPONSE -> true
                else -> layouts[key]?.let { it.dtype == tensor.dtype && it.shape == tensor.shape } ?: false
            }
            if (!fits) throw UnfitCheckpointException("its tensor '${key.take(80)}', $tensor, is not one of this plan")
        }
        val unknown = (place.changed + place.tuned).firstOrNull { it !in layouts }
        if (unknown != null) throw UnfitCheckpointException("its tensor '${unknown.take(80)}' is not one of this plan")
    }

    /** Start from this model. */
    fun receive(digest: String, received: Tensors) {
        checkLayout(received, manifest.received().map { it.layout }, "model ${digest.take(12)} of round ${plan.round}")
        model = received
        modelDigest = digest
        val starts = manifest.ofRole(Names.RECEIVED).filter { Names.isStart(it.key) }
        val all = received + starts.associate { it.key to received.getValue(Names.startedFrom(it.key)) }
        tensors += all
        receivedTensors += all
    }

    fun train(verb: Train) {
        val isHeldOut = heldOut(windows.trainY, verb.holdout)
        val examples = isHeldOut.indices.filterNot { isHeldOut[it] }.toIntArray()
        if (examples.size < verb.least) return
        if (examples.size < manifest.minBatch) {
            throw DataException("Training needs at least ${manifest.minBatch} windows, got ${examples.size}")
        }
        checkBatches(verb, examples.size)
        val parts = batchRanges(examples.size, verb.batchSize, manifest.minBatch)
        val inPass = within.batches % parts.size
        if (inPass > 0 && within.order?.size != examples.size) throw UnfitCheckpointException("it has no order of ${examples.size} windows in the middle of a pass")
        for (number in within.batches until numTrainingBatches(verb, examples.size, windows.numUnlabelled, manifest.minBatch)) {
            between()
            val part = parts[(number % parts.size).toInt()]
            if (part.first == 0) within.order = random.permutation(examples.size).let { order -> IntArray(order.size) { examples[order[it]] } }
            val chosen = within.order!!.copyOfRange(part.first, part.last + 1)
            val inputs = tensors + batch(windows.trainX, windows.trainY, chosen, training = true) + draw(chosen.size) + hyper
            val outputs = run(verb.graph, inputs)
            advance(outputs, verb.report)
            numSteps++
            onStep(numSteps, plannedSteps)
            within.numExamples += chosen.size
            within.lossSum += metric(verb.graph, outputs, "loss_sum")
            within.numCorrect += metric(verb.graph, outputs, "num_correct")
            within.batches++
        }
        if (verb.report) trained = Metrics(within.numExamples, within.lossSum, Math.rint(within.numCorrect).toLong())
    }

    /**
     * Sum a graph's metrics over a split. `loss_sum` and `num_correct` become the metrics of the
     * model as it is now, if the verb reports. Other metrics become responses. Over no windows
     * these are zero for later graphs, and are not reported.
     */
    fun evaluate(verb: Evaluate) {
        val inputs = if (verb.model == "initial") tensors + initial else tensors
        val sums = sums(verb.graph, inputs, verb.split, verb.holdout, verb.most)
        if ("num_correct" in sums.totals) {
            val lossSum = sums.totals.remove("loss_sum")?.single() ?: throw BundleException("graph '${verb.graph}' has no metric loss_sum")
            val numCorrect = sums.totals.remove("num_correct")!!.single()
            if (verb.report) evaluated = Metrics(sums.count.toLong(), lossSum, Math.rint(numCorrect).toLong())
        }
        val responses = sums.totals.entries.associate { (name, total) ->
            Names.response(verb.graph, name) to total.mean(maxOf(1, sums.count))
        }
        val nothing = if (sums.count > 0) emptyList() else manifest.graphs[verb.graph]?.responses.orEmpty()
        tensors += responses + nothing.associate { (name, shape) -> Names.response(verb.graph, name) to Tensor.allocate(DType.FLOAT32, shape) }
        if (verb.report) sent += declared(verb.graph, responses)
    }

    /**
     * Continue with the model of the smallest mean loss. A loss that is not a number counts as
     * infinite.
     */
    fun choose(verb: Choose) {
        val losses = within.losses
        for (digest in verb.models.drop(losses.size)) {
            val loss = sums(verb.graph, tensors + fetch(digest), "train").totals["loss_sum"]?.single() ?: 0.0
            losses += if (loss.isNaN()) Double.POSITIVE_INFINITY else loss.coerceIn(-Double.MAX_VALUE, Double.MAX_VALUE)
        }
        val best = losses.indices.minByOrNull { losses[it] } ?: return
        val chosen = verb.models.getOrNull(best) ?: throw UnfitCheckpointException("it has ${losses.size} losses of ${verb.models.size} candidates")
        receive(chosen, fetch(chosen))
    }

    fun annotate(verb: Annotate) {
        if (Names.batch(verb.column) in setOf(Names.X, Names.Y)) throw MalformedException("verb annotate: a column must not have the name '${verb.column}'")
        val column = if (windows.numTrain == 0) Tensor.of(FloatArray(0)) else rows(verb.graph, windows.numTrain) { part ->
            tensors + batch(windows.trainX, windows.trainY, part.toIntArray(), training = true) + hyper
        }
        if (column.rows != windows.numTrain) throw MalformedException("graph '${verb.graph}': expected ${windows.numTrain} rows, one for each window, got ${column.rows}")
        tensors[Names.column(verb.column)] = column
    }

    fun apply(verb: Apply) {
        between()
        val outputs = run(verb.graph, tensors + hyper)
        advance(outputs, report = false)
        val metrics = Names.part(outputs, Names.METRIC).mapKeys { Names.response(verb.graph, it.key) }
        tensors += metrics
        if (verb.report) sent += declared(verb.graph, metrics)
    }

    fun respond(verb: Respond) {
        val (sentX, window) = Pair(fetch(verb.inputs)["x"], manifest.window)
        if (sentX == null || sentX.dtype != window.dtype || sentX.shape.drop(1) != window.shape || sentX.rows == 0) {
            throw MalformedException("inputs of verb respond: tensor x must be ${window.dtype} (n, ${window.shape}), got $sentX")
        }
        val x = fitting(sentX, window, "verb respond")
        sent[Names.response(verb.graph)] = rows(verb.graph, x.rows) { part -> tensors + (Names.X to x.take(part.toIntArray())) }
    }

    /** Clip the changes of training, and add noise, as to one vector in the manifest's order. */
    fun protect(verb: Protect) {
        val keys = manifest.ofRole(Names.SHARED, Names.STATISTIC).map { it.key }.filter { it in changed }
        if (keys.isEmpty()) return
        val differences = keys.map { difference(tensors.getValue(it), model.getValue(it)) }
        val flat = FloatArray(differences.sumOf { it.size })
        var at = 0
        for (part in differences) {
            part.floats().get(flat, at, part.size)
            at += part.size
        }
        if (flat.any { !it.isFinite() }) throw MalformedException("verb protect: the changes of training must be finite")
        val safe = addNoise(clip(flat, verb.clipNorm), verb.noiseStd, noise)
        at = 0
        for (key in keys) {
            val base = model.getValue(key)
            val change = Tensor.of(safe.copyOfRange(at, at + base.size), base.shape)
            val value = sum(base, change)
            protected[key] = change
            tensors[key] = if (Names.isVariance(key)) notNegative(value) else value
            at += base.size
        }
    }

    /** Return the result, with the changes of the model and the tensors that the device stores. */
    fun finish(): PlanResult {
        for (key in changed) {
            if (Names.roleOf(key) == Names.STATISTIC) {
                sent[key] = tensors.getValue(key)
            } else { // a protected change is sent as it is: adding and subtracting the model would round it
                val change = protected[key] ?: difference(tensors.getValue(key), model.getValue(key))
                sent[Names.delta(Names.nameOf(key))] = change
            }
        }
        val columns = tensors.filterKeys { Names.roleOf(it) == Names.COLUMN }
        val private = tensors.filterKeys { Names.roleOf(it) == Names.PRIVATE }
        val personal = tensors.filterKeys { it in tuned }
        val layouts = manifest.tensors.filter { it.key in private || it.key in personal }.map { it.layout }
        checkLayout(private + personal, layouts, "private tensors after round ${plan.round}") // wrong ones would break later plans
        return PlanResult(modelDigest, evaluated, trained, numSteps, sent, private + columns + personal.mapKeys { Names.personal(it.key) }, numbers, node)
    }

    private fun checkBatches(verb: Train, numExamples: Int) {
        val most = graphs.maxBatch ?: return
        val largest = batchRanges(numExamples, verb.batchSize, manifest.minBatch).maxOf { it.last - it.first + 1 }
        if (largest > most) throw DataException("training batches must have at most $most examples for these graphs, got $largest")
    }

    private fun advance(outputs: Tensors, report: Boolean) {
        for ((key, value) in Names.part(outputs, Names.NEXT)) {
            tensors[key] = value
            if (Names.isExchanged(key)) (if (report) changed else tuned) += key
            if (Names.roleOf(key) == Names.MEMORY) tuned += key
        }
    }

    private fun batch(x: Tensor, y: Tensor, chosen: IntArray, training: Boolean): Tensors {
        val columns = if (training) Names.part(tensors, Names.COLUMN) else emptyMap()
        return mapOf(Names.X to x.take(chosen), Names.Y to y.take(chosen)) +
            columns.entries.associate { (name, rows) -> Names.batch(name) to rows.take(chosen) }
    }

    /** Return the random inputs of a batch. */
    private fun draw(size: Int): Tensors = manifest.random.entries.associate { (name, shape) ->
        Names.batch(name) to if (Names.roleOf(name) == Names.UNIFORM) {
            val whole = listOf(size) + shape
            Tensor.of(random.floats(whole.fold(1, Math::multiplyExact)), whole)
        } else {
            Tensor.of(FloatArray(shape.fold(1, Math::multiplyExact)) { noise.next().toFloat() }, shape)
        }
    }

    private class Sums(val totals: MutableMap<String, Total>, val count: Int)

    /** Return the sums of a graph's metrics over a split, and the number of its examples. */
    private fun sums(graph: String, inputs: Tensors, split: String, holdout: Double = 0.0, most: Long = 0): Sums {
        val over = Split.of(windows, manifest.label, split, holdout, most)
        val totals = within.sums
        for (part in ranges(over.order.size).drop(within.batches.toInt())) {
            between()
            val chosen = over.order.sliceArray(part)
            val places = over.places.mapValues { it.value.take(chosen) }
            val outputs = run(graph, inputs + batch(over.x, over.y, chosen, over.labelled) + places + hyper)
            for ((name, value) in Names.part(outputs, Names.METRIC)) totals.getOrPut(name) { Total(value.shape) }.add(graph, value)
            within.batches++
        }
        within.batches = 0
        return Sums(LinkedHashMap(totals).also { totals.clear() }, over.order.size)
    }

    private fun ranges(numExamples: Int) = evaluationRanges(numExamples, manifest.minBatch, graphs.maxBatch)

    private fun IntRange.toIntArray() = IntArray(last - first + 1) { first + it }

    /**
     * Return those of a graph's measurements that its bundle declares as responses: no others leave
     * the device.
     */
    private fun declared(graph: String, measured: Tensors): Tensors {
        val names = manifest.graphs[graph]?.responses.orEmpty().map { (name, _) -> Names.response(graph, name) }
        return measured.filterKeys { it in names }
    }

    private fun run(graph: String, inputs: Tensors): Tensors {
        val missing = if (resumed) manifest.graphs[graph]?.inputs?.firstOrNull { it !in inputs } else null
        if (missing != null) throw UnfitCheckpointException("it lacks '$missing', which graph '$graph' reads")
        return graphs.run(graph, inputs).also { runs++ }
    }

    /** Return a graph's output for each of [numExamples] examples, batch by batch. */
    private fun rows(graph: String, numExamples: Int, inputs: (IntRange) -> Tensors): Tensor {
        for (part in ranges(numExamples).drop(within.batches.toInt())) {
            between()
            within.rows += oneOutput(graph, inputs(part))
            within.batches++
        }
        return concatenate(within.rows)
    }

    private fun oneOutput(graph: String, inputs: Tensors): Tensor {
        val outputs = Names.part(run(graph, inputs), Names.OUTPUT).values
        return outputs.singleOrNull() ?: throw MalformedException("graph '$graph' must have one per-example output, got ${outputs.size}")
    }

    private fun metric(graph: String, outputs: Tensors, name: String): Double {
        val value = outputs[Names.metric(name)] ?: throw MalformedException("graph '$graph' has no metric $name, and training needs one")
        return Total(value.shape).apply { add(graph, value) }.single()
    }
}
