package io.shoal.core.wire

import io.shoal.core.InternalShoalApi

/** One thing that a plan asks of a device (`wire/SPEC.md`, 'Plans'). */
@InternalShoalApi
public sealed interface Verb {
    /** The value of the field `type`. */
    public val type: String
}

/**
 * Run a step graph over the training windows: [epochs] epochs, or exactly [steps] batches when given. An epoch is a pass over these windows.
 * Where the device has windows without labels as well, it is as many batches as a pass over all of its windows would have, in [mostPasses]
 * passes over those for training at most. A device that has fewer than [least] windows besides those held out leaves the verb out.
 */
internal data class Train(
    val batchSize: Int,
    val epochs: Int = 1,
    val steps: Long? = null,
    val hyper: Map<String, Double> = emptyMap(),
    val graph: String = "step",
    val report: Boolean = true,
    val holdout: Double = 0.0,
    val least: Long = 0,
    val mostPasses: Int = 1,
) : Verb {
    override val type: String get() = "train"
}

/**
 * Sum a graph's metrics over a split (`train test holdout windows unlabelled`), on the tensors as they are (`received`) or the bundle's
 * `initial` ones. The split `windows` is the training windows and after them those without labels, `unlabelled` the latter alone; of both, no
 * window takes part whose rank is [most] or above, unless it is 0.
 */
internal data class Evaluate(
    val split: String = "test",
    val graph: String = "evaluate",
    val model: String = "received",
    val holdout: Double = 0.0,
    val report: Boolean = true,
    val most: Long = 0,
) : Verb {
    override val type: String get() = "evaluate"
}

/** Go on from the one of these models with the least mean loss on the training windows, the first such. */
internal data class Choose(val models: List<String>, val graph: String = "evaluate") : Verb {
    override val type: String get() = "choose"
}

/** Store a graph's per-example output as a column of the training windows; it stays on the device. */
internal data class Annotate(val graph: String, val column: String) : Verb {
    override val type: String get() = "annotate"
}

/** Run a graph once over the tensors alone. What it measures goes back only with [report]. */
internal data class Apply(val graph: String, val report: Boolean = true) : Verb {
    override val type: String get() = "apply"
}

/** Run a graph on the tensor `x` of the blob [inputs], and return its output. */
internal data class Respond(val inputs: String, val graph: String = "predict") : Verb {
    override val type: String get() = "respond"
}

/** Clip what training changed to the Euclidean norm [clipNorm], and add Gaussian noise to it. */
internal data class Protect(val clipNorm: Double, val noiseStd: Double = 0.0) : Verb {
    override val type: String get() = "protect"
}
