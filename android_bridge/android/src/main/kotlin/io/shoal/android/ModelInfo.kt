package io.shoal.android

import io.shoal.core.Current
import io.shoal.core.Packaged
import io.shoal.core.RoundMeasurement
import io.shoal.core.ShoalException
import io.shoal.core.wire.Metrics

/**
 * Model that answers predictions.
 *
 * @param digest SHA-256 of its tensors
 * @param run run that it came from
 * @param release number of the release; 0 if a finished run offered it
 */
public class ModelInfo internal constructor(public val digest: String, public val run: String, public val release: Long) {
    /** True if it is the app's own model ([FleetBuilder.model]). */
    public val isPackaged: Boolean get() = run == Packaged.RUN

    /** Return true if [other] is the same model, of the same run and release. */
    override fun equals(other: Any?): Boolean = other is ModelInfo && digest == other.digest && run == other.run && release == other.release

    override fun hashCode(): Int = digest.hashCode()

    override fun toString(): String = "model ${digest.take(12)} of run $run, release $release"

    internal companion object {
        fun of(current: Current): ModelInfo = ModelInfo(current.model, current.run, current.release)
    }
}

/** Listener for the models that answer. What it throws becomes a line of the log. */
public fun interface ModelListener {
    /** Called when this model answers from now on. */
    @Throws(ShoalException::class)
    public fun onModel(model: ModelInfo)
}

/**
 * Metrics of a [round] of a [run]: of training, and of the model that came, on windows that no
 * training uses.
 */
public class RoundMetrics internal constructor(measurement: RoundMeasurement) {
    /** Id of the run. */
    public val run: String = measurement.run

    /** Number of the round. */
    public val round: Long = measurement.round

    /** Metrics over the windows that were trained on; null in a round without training. */
    public val trained: Evaluation? = Evaluation.of(measurement.trained)

    /** Metrics over windows that no training uses; null in a round without an evaluation. */
    public val evaluated: Evaluation? = Evaluation.of(measurement.evaluated)

    override fun equals(other: Any?): Boolean = other is RoundMetrics && toString() == other.toString()

    override fun hashCode(): Int = toString().hashCode()

    override fun toString(): String = "round $round of run $run: trained $trained, evaluated $evaluated"
}

/** Listener for the rounds that the phone carries out. What it throws becomes a line of the log. */
public fun interface RoundListener {
    /** Called when a round is finished. */
    @Throws(ShoalException::class)
    public fun onRound(metrics: RoundMetrics)
}

/**
 * Metrics of the last offered model on the phone's own held-out windows, and of the one that was in
 * use [before].
 */
public class ModelMetrics internal constructor(public val before: Evaluation?, public val after: Evaluation?) {
    override fun equals(other: Any?): Boolean = other is ModelMetrics && toString() == other.toString()

    override fun hashCode(): Int = toString().hashCode()

    override fun toString(): String = "before $before, after $after"
}

/** Means over windows: [loss] is the cross-entropy in nats, [accuracy] a share of 1. */
public class Evaluation internal constructor(public val windows: Long, public val loss: Double, public val accuracy: Double) {
    override fun equals(other: Any?): Boolean = other is Evaluation && toString() == other.toString()

    override fun hashCode(): Int = toString().hashCode()

    override fun toString(): String = "loss $loss, accuracy $accuracy over $windows windows"

    internal companion object {
        /** Return the means of sums, or null if nothing was evaluated. */
        fun of(sums: Metrics): Evaluation? = sums.numExamples.takeIf { it > 0 }?.let {
            Evaluation(it, sums.lossSum / it, sums.numCorrect.toDouble() / it)
        }
    }
}
