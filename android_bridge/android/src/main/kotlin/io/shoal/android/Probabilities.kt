package io.shoal.android

import io.shoal.core.Tensor

/** What a model answers: for each example a probability of each of the [classes]. */
public class Probabilities internal constructor(public val classes: List<String>, numbers: Tensor) {
    private val numbers = numbers.toFloatArray()

    /** How many examples were asked about. */
    public val size: Int = numbers.rows

    /** The probabilities of example [at], in the order of [classes]. */
    public fun of(at: Int): FloatArray {
        if (at !in 0 until size) throw IndexOutOfBoundsException("example $at of $size")
        return numbers.copyOfRange(at * classes.size, (at + 1) * classes.size)
    }

    /** The class that is the most probable for example [at]. */
    public fun best(at: Int): String = of(at).let { own -> classes[own.indices.maxByOrNull { own[it] } ?: 0] }
}
