package io.shoal.android

import io.shoal.core.Tensor

private const val CLASSIFICATION = "classification"
private const val MULTI_LABEL = "multi-label"
private const val SEQUENCE = "sequence"

/**
 * Answers of a model for [size] examples, of a kind for each task. Two with the same content are
 * equal.
 */
public sealed class Prediction private constructor(
    /** Names of the numbers of an example, in their order. */
    public val names: List<String>,
    numbers: Tensor,
) {
    /** Number of examples. */
    public val size: Int = numbers.rows
    private val numbers = numbers.toFloatArray()
    private val each = numbers.shape.drop(1).fold(1, Int::times)

    /**
     * Return the numbers of example [at], in the order of [names]. In a task of steps, the numbers
     * of the first step are followed by those of the second, and so on.
     *
     * @throws IndexOutOfBoundsException there is no such example
     */
    public fun values(at: Int): FloatArray {
        if (at !in 0 until size) throw IndexOutOfBoundsException("example $at: there are $size examples, from 0 on")
        return numbers.copyOfRange(at * each, (at + 1) * each)
    }

    override fun equals(other: Any?): Boolean =
        other is Prediction && javaClass == other.javaClass && names == other.names && size == other.size && numbers.contentEquals(other.numbers)

    override fun hashCode(): Int = 31 * names.hashCode() + numbers.contentHashCode()

    override fun toString(): String = "${javaClass.simpleName} $names ${numbers.contentToString()}"

    /** A probability of each class, one of which fits. */
    public class Classes internal constructor(names: List<String>, numbers: Tensor) : Prediction(names, numbers) {
        /**
         * Return the most probable class of example [at].
         *
         * @throws IndexOutOfBoundsException there is no such example
         */
        public fun best(at: Int): String = largest(values(at).asList())
    }

    /** A probability of each label, of which several may fit. */
    public class Labels internal constructor(names: List<String>, numbers: Tensor) : Prediction(names, numbers) {
        /**
         * Return the labels of example [at] with a probability of at least a half.
         *
         * @throws IndexOutOfBoundsException there is no such example
         */
        public fun likely(at: Int): List<String> = values(at).let { row -> names.filterIndexed { name, _ -> row[name] >= 0.5f } }
    }

    /** A probability of each class for each step of an example. */
    public class Steps internal constructor(names: List<String>, numbers: Tensor) : Prediction(names, numbers) {
        /**
         * Return the most probable class of each step of example [at].
         *
         * @throws IndexOutOfBoundsException there is no such example
         */
        public fun best(at: Int): List<String> = values(at).asList().chunked(names.size, ::largest)
    }

    /** Quantities in their own units; for a model of reconstruction, its error. */
    public class Quantities internal constructor(names: List<String>, numbers: Tensor) : Prediction(names, numbers)

    internal fun largest(row: List<Float>): String = names[row.indices.maxByOrNull { row[it] } ?: 0]

    internal companion object {
        fun of(task: String, names: List<String>, numbers: Tensor): Prediction = when (task) {
            CLASSIFICATION -> Classes(names, numbers)
            MULTI_LABEL -> Labels(names, numbers)
            SEQUENCE -> Steps(names, numbers)
            else -> Quantities(names, numbers)
        }
    }
}
