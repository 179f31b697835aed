package io.shoal.android

import io.shoal.core.Current
import io.shoal.core.Packaged
import io.shoal.core.RoundMeasured
import io.shoal.core.wire.Metrics

/**
 * The model that answers predictions.
 *
 * @param digest the SHA-256 of its tensors
 * @param run the run that it came from
 * @param release the release's number, 0 if a finished run offered it
 */
public class ModelInfo internal constructor(public val digest: String, public val run: String, public val release: Long) {
    /** Whether it is the one that the app brought along ([FleetBuilder.model]). */
    public val isPackaged: Boolean get() = run == Packaged.RUN

    /** Whether [other] is the same model, of the same run and release. */
    override fun equals(other: Any?): Boolean = other is ModelInfo && digest == other.digest && run == other.run && release == other.release

    override fun hashCode(): Int = digest.hashCode()

    override fun toString(): String = "model ${digest.take(12)} of run $run, release $release"

    internal companion object {
        fun of(current: Current): ModelInfo = ModelInfo(current.model, current.run, current.release)
    }
}

/** Is told of each model that answers from then on. */
public fun interface ModelListener {
    /** This one answers. */
    public fun onModel(model: ModelInfo)
}

/** What was measured in a [round] of a [run]: in training, and of the model that came, on the windows that no training saw. */
public class RoundMetrics internal constructor(measured: RoundMeasured) {
    /** The run's id. */
    public val run: String = measured.run

    /** The round's number. */
    public val round: Long = measured.round

    /** Over the windows that were trained on; null in a round without training. */
    public val trained: Evaluation? = Evaluation.of(measured.trained)

    /** Over the windows that no training saw; null if the round asked for none. */
    public val evaluated: Evaluation? = Evaluation.of(measured.evaluated)
}

/** Is told of each round that the phone has carried out. */
public fun interface RoundListener {
    /** A round is done. */
    public fun onRound(metrics: RoundMetrics)
}

/** How the last model that was offered does on the phone's own held-out windows, and how the one did that was in use [before]. */
public class ModelMetrics internal constructor(public val before: Evaluation?, public val after: Evaluation?)

/** Means over held-out windows: [loss] is the cross-entropy in nats, [accuracy] a share of 1. */
public class Evaluation internal constructor(public val windows: Long, public val loss: Double, public val accuracy: Double) {
    override fun toString(): String = "loss $loss, accuracy $accuracy over $windows windows"

    internal companion object {
        /** Null where nothing was evaluated. */
        fun of(sums: Metrics): Evaluation? = sums.numExamples.takeIf { it > 0 }?.let {
            Evaluation(it, sums.lossSum / it, sums.numCorrect.toDouble() / it)
        }
    }
}
