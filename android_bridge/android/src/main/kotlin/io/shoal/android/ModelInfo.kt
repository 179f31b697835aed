package io.shoal.android

import io.shoal.core.wire.Metrics

/**
 * The model that answers predictions.
 *
 * @param digest the SHA-256 of its tensors
 * @param run the run that it came from
 * @param release the release's number, 0 if a finished run offered it
 */
public class ModelInfo internal constructor(public val digest: String, public val run: String, public val release: Long)

/** How the last model that was offered does on the phone's own held-out windows, and how the one did that was in use [before]. */
public class ModelMetrics internal constructor(public val before: Evaluation?, public val after: Evaluation?)

/** Means over held-out windows: [loss] is the cross-entropy in nats, [accuracy] a share of 1. */
public class Evaluation internal constructor(public val windows: Long, public val loss: Double, public val accuracy: Double) {
    internal companion object {
        /** Null where nothing was evaluated. */
        fun of(sums: Metrics): Evaluation? = sums.numExamples.takeIf { it > 0 }?.let {
            Evaluation(it, sums.lossSum / it, sums.numCorrect.toDouble() / it)
        }
    }
}
