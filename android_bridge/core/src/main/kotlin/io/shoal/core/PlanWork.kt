package io.shoal.core

import io.shoal.core.secret.MaskedResult
import io.shoal.core.secret.Masking
import io.shoal.core.wire.Bundle
import io.shoal.core.wire.Choose
import io.shoal.core.wire.Manifest
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.Plan
import io.shoal.core.wire.Policy
import io.shoal.core.wire.Respond
import io.shoal.core.wire.SumQuestion
import io.shoal.core.wire.SurveyVerb
import io.shoal.core.wire.Update
import io.shoal.core.wire.checkSums
import io.shoal.core.wire.encodeUpdate

/**
 * Finished plan: the update's bytes, the model that it started from, and the tensors that the
 * device stores. [storeAnswer] stores the answer to the plan's question, if it has one, and must be
 * called before the update is stored.
 */
internal class FinishedPlan(val payload: ByteArray, val model: String, val private: Tensors, val numSteps: Long, val storeAnswer: () -> Unit)

/**
 * Work on one plan at a time: the whole plan is checked against the bundle and the policy, then
 * carried out. Nothing is stored.
 * Without [masking], a plan that asks for a secret sum is declined. [timeOf] is the aggregator's
 * time as a plan of an epoch may know it.
 */
internal class PlanWork(
    private val deviceId: String,
    private val windows: Windows,
    private val policy: Policy,
    private val loaded: LoadedBundle,
    private val checkpoints: Checkpoints,
    private val mostBytes: Int,
    private val masking: Masking? = null,
    private val timeOf: (Long) -> Double = { Double.NEGATIVE_INFINITY },
) {
    /**
     * Check a plan against the rules of the policy that need no bundle.
     *
     * @throws PolicyBrokenException the plan breaks one of them
     */
    fun checkWithoutBundle(plan: Plan) {
        val anyBundle = policy.copy(bundles = null)
        val broken = listOf(true, false).map { labels -> // the bundle's task may need no labels
            val (y, numTest) = windows.labelsFor(labels)
            brokenRule(anyBundle, plan, "", emptySet(), y, numTest)
        }
        if (null !in broken) throw PolicyBrokenException(broken.first()!!)
    }

    /**
     * Verify the plan's bundle, check the plan against the policy, and load the bundle's graphs.
     *
     * @throws PolicyBrokenException the policy forbids the plan
     * @throws BundleException the bundle must not be used, or is older than the one of its name in
     *   [versions]
     * @throws DataException the device's windows do not fit
     * @throws MalformedException the bundle has no graph of this name
     */
    fun open(plan: Plan, versions: Map<String, Long>): Manifest {
        val manifest = loaded.verified(plan.bundle).manifest
        Bundle.checkVersion(manifest, versions)
        val (y, numTest) = windows.labelsFor(manifest.needsLabels)
        val measuring = manifest.graphs.filterValues { it.responses.isNotEmpty() }.keys
        brokenRule(policy, plan, manifest.name, measuring, y, numTest)?.let { throw PolicyBrokenException(it) }
        val unknown = plan.verbs.mapNotNull(::graphOf).firstOrNull { it !in manifest.graphs }
        if (unknown != null) throw MalformedException("plan: no graph '$unknown' in bundle ${manifest.name}; its graphs: ${manifest.graphs.keys.sorted().joinToString()}")
        loaded.executor(plan.bundle)
        return manifest
    }

    /**
     * Carry out the plan whose bundle [open] has loaded, from its checkpoint on if there is one.
     * [between] is called before every run of a graph; an exception from it ends the work.
     *
     * @throws PolicyBrokenException the plan took longer than the policy permits
     * @throws ShoalException the plan cannot be carried out
     */
    fun carryOut(plan: Plan, private: Tensors, bytesReceived: Long, onStep: (Long, Long) -> Unit, between: () -> Unit): FinishedPlan {
        val executor = loaded.executor(plan.bundle)
        val model = loaded.tensors(plan.model)
        val resumed = checkpoints.begin(plan, executor)
        val isMasked = maskOf(plan) != null
        // a plan for this device alone could have prepared what a masked one starts from
        val survey = surveying(plan)
        if (survey != null) withMasking { it.bind(plan, survey) } // else one that declines could be asked about every plane
        val start = if (isMasked || survey != null) emptyMap() else private
        fun run(from: Checkpoint?) = executor.execute(plan, model, start, loaded::tensors, onStep, from) { paused(between) }
        fun work() = try {
            run(resumed)
        } catch (unfit: UnfitCheckpointException) {
            checkpoints.drop(unfit.message.orEmpty())
            run(null)
        }
        val result = if (isMasked && survey == null) always(plan, ::work) else work()
        val numTrain = windows.labelsFor(loaded.verified(plan.bundle).manifest.needsLabels).first.rows
        val update = Update(
            runId = plan.runId,
            epoch = plan.epoch,
            round = plan.round,
            attempt = plan.attempt,
            deviceId = deviceId,
            model = result.model,
            numTrain = numTrain.toLong(),
            numSteps = result.numSteps,
            evaluated = result.evaluated,
            trained = result.trained,
            bytesReceived = bytesReceived,
            trainS = Math.rint(checkpoints.workedS * 1e6) / 1e6,
        )
        if (!isMasked) checkSums(update)
        val masked = maskOf(plan)?.let { masked(it.question, plan, result, model) }
        val node = if (isMasked || survey == null) "" else node(survey, plan, result)
        val permitted = if (masked == null && survey == null && policy.minSum == null) update else withoutCounts(update)
        val tensors = masked?.tensors ?: if (survey != null) emptyMap() else Quantised.encoded(result.tensors, plan.encoding, plan.seed, deviceId)
        val payload = encodeUpdate(permitted.copy(share = masked?.signed, node = node), tensors)
        if (payload.size > mostBytes) {
            throw LimitExceededException("update of ${payload.size} bytes: at most $mostBytes can be sent")
        }
        return FinishedPlan(payload, result.model, if (isMasked || survey != null) emptyMap() else result.private, result.numSteps, masked?.store ?: {})
    }

    /**
     * Return the result of the work; one without any change if it fails: that a device declines would
     * tell of its data.
     */
    private fun always(plan: Plan, work: () -> PlanResult): PlanResult = try {
        work()
    } catch (stopped: StoppedException) {
        throw stopped
    } catch (interrupted: InterruptedException) {
        throw interrupted
    } catch (_: Exception) {
        PlanResult(plan.model, Metrics(), Metrics(), 0, emptyMap(), emptyMap())
    }

    private fun masked(question: SumQuestion, plan: Plan, result: PlanResult, model: Tensors): MaskedResult =
        withMasking { it.answer(question, plan, result, model, timeOf(plan.epoch)) }

    private fun node(tell: SurveyVerb, plan: Plan, result: PlanResult): String = withMasking { it.node(tell, plan, result) }

    private fun <T> withMasking(work: (Masking) -> T): T {
        val masking = meansToMask()
        return try {
            work(masking)
        } catch (broken: PolicyBrokenException) {
            throw PolicyBrokenException("min_sum: ${broken.message}")
        }
    }

    private fun meansToMask(): Masking = masking ?: throw PolicyBrokenException("min_sum: this device has no helpers' keys (helpers), so no secret sums")

    /** Return an update without counts, metrics and times of the device's data. */
    private fun withoutCounts(update: Update) = update.copy(numTrain = 0, numSteps = 0, evaluated = Metrics(), trained = Metrics(), trainS = 0.0)

    /**
     * Write a checkpoint if one is due, and enforce the limit of time. Called between two runs of a
     * graph.
     */
    private fun paused(between: () -> Unit) {
        try {
            between()
        } catch (stopped: StoppedException) {
            checkpoints.write()
            throw stopped
        }
        val workedS = checkpoints.workedS
        if (policy.maxSeconds != null && workedS > policy.maxSeconds) {
            throw PolicyBrokenException("max_seconds: the plan has worked for $workedS, ${policy.maxSeconds} are permitted")
        }
        checkpoints.between()
    }

    companion object {
        /** Return the blobs that a plan needs. */
        fun blobsOf(plan: Plan): Set<String> = buildSet {
            add(plan.bundle)
            add(plan.model)
            plan.verbs.forEach { if (it is Respond) add(it.inputs) else if (it is Choose) addAll(it.models) }
        }
    }
}
