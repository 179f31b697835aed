package io.shoal.android

import io.shoal.core.Tensor

private const val CLASSIFICATION = "classification"
private const val MULTI_LABEL = "multi-label"
private const val SEQUENCE = "sequence"

/**
 * Answers of a model: for each example a probability of each of the [classes]. In a task of several
 * labels these are the labels' names. In a task of steps there is a probability of each class for
 * each step of a window. A model of quantities answers them by their names, in their own units. A
 * model of reconstruction answers one number, `reconstruction_error`.
 */
public class Probabilities internal constructor(
    public val classes: List<String>,
    numbers: Tensor,
    private val task: String = CLASSIFICATION,
) {
    private val numbers = numbers.toFloatArray()

    /** Number of examples. */
    public val size: Int = numbers.rows

    private val each = numbers.shape.drop(1).fold(1, Int::times)

    /**
     * Return the probabilities of example [at], in the order of [classes]. In a task of steps, the
     * probabilities of the first step are followed by those of the second, and so on.
     */
    public fun of(at: Int): FloatArray {
        if (at !in 0 until size) throw IndexOutOfBoundsException("example $at: there are $size examples, from 0 on")
        return numbers.copyOfRange(at * each, (at + 1) * each)
    }

    /**
     * Return the most probable class of each step of example [at].
     *
     * @throws IllegalStateException the task has no steps
     */
    public fun steps(at: Int): List<String> {
        check(task == SEQUENCE) { "the model's task is $task: its examples have no steps" }
        return of(at).toList().chunked(classes.size) { step -> classes[step.indices.maxByOrNull { step[it] } ?: 0] }
    }

    /**
     * Return the most probable class of example [at].
     *
     * @throws IllegalStateException the task is not a classification
     */
    public fun best(at: Int): String {
        check(task == CLASSIFICATION) { "the model's task is $task: its examples have no single class" }
        return of(at).let { row -> classes[row.indices.maxByOrNull { row[it] } ?: 0] }
    }

    /**
     * Return the labels of example [at]: those with a probability of at least a half.
     *
     * @throws IllegalStateException the task has no several labels
     */
    public fun labels(at: Int): List<String> {
        check(task == MULTI_LABEL) { "the model's task is $task: its examples have no several labels" }
        return of(at).let { row -> classes.filterIndexed { name, _ -> row[name] >= 0.5f } }
    }
}
