package io.shoal.core.wire

import io.shoal.core.InternalShoalApi

/** Step of a plan (`wire/SPEC.md`, 'Plans'). */
@InternalShoalApi
public sealed interface Verb {
    /** Value of the field `type`. */
    public val type: String
}

/**
 * Run a step graph over the training windows: [epochs] epochs, or exactly [steps] batches if set.
 * An epoch is a pass over these windows. If the device has windows without labels as well, an epoch
 * has as many batches as a pass over all of its windows, but at most [mostPasses] passes over the
 * labelled ones. A device that has fewer than [least] windows besides those held out skips the
 * verb.
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
 * Sum a graph's metrics over a split (`train test holdout windows unlabelled`), with the current
 * tensors (`received`) or the bundle's `initial` ones. The split `windows` has the training windows
 * and after them those without labels, `unlabelled` the latter alone. Both leave out windows of the
 * rank [most] or above, unless it is 0.
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

/**
 * Continue with the one of these models that has the smallest mean loss on the training windows,
 * the first such.
 */
internal data class Choose(val models: List<String>, val graph: String = "evaluate") : Verb {
    override val type: String get() = "choose"
}

/** Store a graph's per-example output as a column of the training windows; it stays on the device. */
internal data class Annotate(val graph: String, val column: String) : Verb {
    override val type: String get() = "annotate"
}

/** Run a graph once over the tensors alone. Its measurements are reported only with [report]. */
internal data class Apply(val graph: String, val report: Boolean = true) : Verb {
    override val type: String get() = "apply"
}

/** Run a graph on the tensor `x` of the blob [inputs], and report its output. */
internal data class Respond(val inputs: String, val graph: String = "predict") : Verb {
    override val type: String get() = "respond"
}

/**
 * Clip the changes of training to the Euclidean norm [clipNorm], and add Gaussian noise to them.
 */
internal data class Protect(val clipNorm: Double, val noiseStd: Double = 0.0) : Verb {
    override val type: String get() = "protect"
}

/**
 * Answer a [question] of a secret sum by the change of the training, and report nothing else. A plan
 * that has this verb ends with it.
 */
internal data class Mask(val question: SumQuestion) : Verb {
    override val type: String get() = "mask"
}
