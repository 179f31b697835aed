package io.shoal.core

import io.shoal.core.random.RandomState
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.Plan
import io.shoal.core.wire.digest
import io.shoal.core.wire.encode
import io.shoal.core.wire.hexOf
import java.security.MessageDigest

/**
 * Inputs of the work (`edge_client/core/checkpoint.py`; `wire/SPEC.md`, 'A checkpoint'). A
 * checkpoint is resumed only if all of them are unchanged.
 *
 * @property client client and its version: another client may make other batches
 * @property plan [workDigest] of the plan, which names the bundle and the model by their hashes
 * @property windows [windowsDigest] of the device's data
 */
internal data class Basis(val format: Long, val client: String, val runtime: String, val plan: String, val windows: String) {
    companion object {
        const val FORMAT = 1L
    }
}

/** Return the reason why a checkpoint with the basis [stored] cannot be resumed, or "". */
internal fun unusable(stored: Basis, now: Basis): String = when {
    stored.format != now.format -> "it has format ${stored.format}, this client has ${now.format}"
    stored.client != now.client || stored.runtime != now.runtime ->
        "${stored.client} on ${stored.runtime} made it, this is ${now.client} on ${now.runtime}"
    stored.plan != now.plan -> "it is of another plan"
    stored.windows != now.windows -> "the device's windows have changed since"
    else -> ""
}

/**
 * Return the hash of a plan without its epoch and its deadline. An aggregator that restarts sends
 * the same work with another epoch and deadline.
 */
internal fun workDigest(plan: Plan): String = digest(encode(plan.copy(epoch = 1, deadlineAtS = 0.0)))

/** Return the SHA-256 of the shapes, types and values of all windows and labels. */
internal fun windowsDigest(windows: Windows): String {
    val sha256 = MessageDigest.getInstance("SHA-256")
    for (tensor in windows.run { listOf(trainX, trainY, testX, testY, unlabelledX) }) {
        sha256.update("$tensor;".toByteArray())
        sha256.update(tensor.data.duplicate())
    }
    return hexOf(sha256.digest())
}

/**
 * Pace at which checkpoints are written.
 *
 * @param everyS shortest time between two checkpoints (seconds)
 * @param share largest share of the time that writing may take
 */
internal class Pace(private val everyS: Double = EVERY_S, private val share: Double = 0.05) {
    /** Return the time until the next checkpoint, after one that took [tookS] (seconds). */
    fun pauseS(tookS: Double = 0.0): Double = maxOf(everyS, tookS / share)

    companion object {
        const val EVERY_S = 30.0
    }
}

/**
 * Position in a plan, between two runs of a graph.
 *
 * @property verb index of the current verb
 * @property batches number of its batches that are finished
 * @property runs number of runs of graphs for the plan; it only grows
 * @property model digest of the model that the device started from, or has chosen
 * @property seconds duration of the work so far
 * @property changed names of the model's tensors that were changed for the update
 * @property tuned names of the model's tensors that were changed for the personal model
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

/** Progress of the current verb. The next verb starts with a new one. */
internal class Within {
    var batches = 0L

    /** Examples of the current pass, in their order. */
    var order: IntArray? = null

    /** Sums of the training. */
    var numExamples = 0L
    var lossSum = 0.0
    var numCorrect = 0.0

    /** Sums of an evaluation, by the metric's name. */
    val sums = LinkedHashMap<String, Total>()

    /** Outputs of a graph, one for each batch. */
    val rows = ArrayList<Tensor>()

    /** Losses of the candidates that were compared. */
    val losses = ArrayList<Double>()

    /** Return an independent copy. */
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
 * State of a plan that cannot be made again. The state of the private noise is not part of it: a
 * resumed device draws new noise.
 *
 * @property tensors tensors that graphs may read and that are neither the bundle's nor the model's
 * @property sent tensors of the update
 * @property within progress of the current verb
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

/** A checkpoint that cannot be of this plan. The plan starts from the beginning. */
internal class UnfitCheckpointException(message: String) : WireException(message)
