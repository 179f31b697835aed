package io.shoal.android

import io.shoal.core.Tensor

private const val CLASSIFICATION = "classification"
private const val MULTI_LABEL = "multi-label"
private const val SEQUENCE = "sequence"

/**
 * What a model answers: for each example a probability of each of the [classes]. Where a window has several labels these are the labels' names.
 * A model of steps answers a probability of each class for each step of a window.
 * A model of quantities answers these by their names, in their own units, and one that gives windows back one number, `reconstruction_error`.
 */
public class Probabilities internal constructor(
    public val classes: List<String>,
    numbers: Tensor,
    private val task: String = CLASSIFICATION,
) {
    private val numbers = numbers.toFloatArray()

    /** How many examples were asked about. */
    public val size: Int = numbers.rows

    private val each = numbers.shape.drop(1).fold(1, Int::times)

    /** The probabilities of example [at], in the order of [classes]; of a model of steps, those of one step after another. */
    public fun of(at: Int): FloatArray {
        if (at !in 0 until size) throw IndexOutOfBoundsException("example $at of $size")
        return numbers.copyOfRange(at * each, (at + 1) * each)
    }

    /**
     * The class that is the most probable for each step of example [at].
     *
     * @throws IllegalStateException the model tells no classes of steps
     */
    public fun steps(at: Int): List<String> {
        check(task == SEQUENCE) { "the model has learned $task: examples have no steps" }
        return of(at).toList().chunked(classes.size) { own -> classes[own.indices.maxByOrNull { own[it] } ?: 0] }
    }

    /**
     * The class that is the most probable for example [at].
     *
     * @throws IllegalStateException the model tells no classes
     */
    public fun best(at: Int): String {
        check(task == CLASSIFICATION) { "the model has learned $task: no example has one class" }
        return of(at).let { own -> classes[own.indices.maxByOrNull { own[it] } ?: 0] }
    }

    /**
     * The labels that example [at] has: those with a probability of at least a half.
     *
     * @throws IllegalStateException the model does not tell several labels
     */
    public fun labels(at: Int): List<String> {
        check(task == MULTI_LABEL) { "the model has learned $task: examples do not have several labels" }
        return of(at).let { own -> classes.filterIndexed { name, _ -> own[name] >= 0.5f } }
    }
}
