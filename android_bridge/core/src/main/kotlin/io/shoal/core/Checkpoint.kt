package io.shoal.core

import io.shoal.core.random.RandomState
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.Plan
import io.shoal.core.wire.digest
import io.shoal.core.wire.encode
import io.shoal.core.wire.hexOf
import java.security.MessageDigest

/**
 * What a checkpoint was made of (`edge_client/core/checkpoint.py`; `wire/SPEC.md`, 'A checkpoint'). Work goes on from it only where all of
 * this is the same. [plan] is [workDigest] of the plan, which names the bundle and the model by their hashes; [windows] is [windowsDigest] of
 * the device's data.
 */
internal data class Basis(val format: Long, val client: String, val runtime: String, val plan: String, val windows: String) {
    companion object {
        const val FORMAT = 1L
    }
}

/** Why a checkpoint that was made of [stored] is not gone on from where there is [now]; empty if it is. */
internal fun unusable(stored: Basis, now: Basis): String = when {
    stored.format != now.format -> "it has format ${stored.format}, this client has ${now.format}"
    stored.client != now.client || stored.runtime != now.runtime ->
        "${stored.client} on ${stored.runtime} made it, this is ${now.client} on ${now.runtime}"
    stored.plan != now.plan -> "it is of another plan"
    stored.windows != now.windows -> "the device's windows have changed since"
    else -> ""
}

/** The hash of all that a plan asks for: not its epoch and its deadline, which an aggregator that was started again says anew. */
internal fun workDigest(plan: Plan): String = digest(encode(plan.copy(epoch = 1, deadlineAtS = 0.0)))

/** The SHA-256 of the shapes, types and values of all windows and labels. */
internal fun windowsDigest(windows: Windows): String {
    val made = MessageDigest.getInstance("SHA-256")
    for (tensor in windows.run { listOf(trainX, trainY, testX, testY, unlabelledX) }) {
        made.update("$tensor;".toByteArray())
        made.update(tensor.data.duplicate())
    }
    return hexOf(made.digest())
}

/** How often checkpoints are written: so many seconds lie between two, at least, and writing takes at most this share of the time. */
internal class Pace(private val everyS: Double = EVERY_S, private val share: Double = 0.05) {
    /** How long work goes on before the next one, after one that took so long. */
    fun pauseS(tookS: Double = 0.0): Double = maxOf(everyS, tookS / share)

    companion object {
        const val EVERY_S = 30.0
    }
}

/**
 * Where in the plan a checkpoint was made, between two runs of a graph: in the verb number [verb], after [batches] of its batches, and
 * after [runs] runs of a graph for the plan, a number that only grows. [model] is the one that the device started from, or has chosen;
 * [seconds] is how long the work took so far; [changed] and [tuned] are the tensors of the model that it has changed, for the update and for
 * itself.
 */
internal data class Place(
    val verb: Int,
    val batches: Long,
    val runs: Long,
    val numSteps: Long,
    val model: String,
    val random: RandomState,
    val seconds: Double,
    val changed: List<String>,
    val tuned: List<String>,
)

/** How far the verb in work is. All of it starts anew with the next verb. */
internal class Within {
    var batches = 0L

    /** The examples of the pass in work. */
    var order: IntArray? = null

    /** Sums of the training. */
    var numExamples = 0L
    var lossSum = 0.0
    var numCorrect = 0.0

    /** Sums of an evaluation, by the metric's name. */
    val sums = LinkedHashMap<String, Total>()

    /** What a graph gave for each batch. */
    val rows = ArrayList<Tensor>()

    /** Of the candidates that were weighed. */
    val losses = ArrayList<Double>()

    /** The same, which goes on by itself. */
    fun copy(): Within = Within().also {
        it.batches = batches
        it.order = order
        it.numExamples = numExamples
        it.lossSum = lossSum
        it.numCorrect = numCorrect
        sums.forEach { (name, total) -> it.sums[name] = total.copy() }
        it.rows += rows
        it.losses += losses
    }
}

/**
 * What is done of a plan, and cannot be made again: [tensors] that graphs may read and that are neither the bundle's nor the model's, those
 * of the update ([sent]), and what the verb in work has done so far. Where the device's own noise was is not in it: it is drawn anew.
 */
internal class Checkpoint(
    val place: Place,
    val tensors: Tensors,
    val sent: Tensors,
    val protected: Tensors,
    val evaluated: Metrics,
    val trained: Metrics,
    val within: Within,
)

/** A checkpoint cannot be of this plan, whatever it says: the plan starts anew. */
internal class Unfit(message: String) : WireException(message)
