package io.shoal.core

import io.shoal.core.random.Noise

/** Sum of float32 or int64 tensors of one shape, in float64. */
internal class Total(private val shape: List<Int>, private val sums: DoubleArray = DoubleArray(shape.fold(1, Math::multiplyExact))) {
    /** Return an independent copy. */
    fun copy() = Total(shape, sums.copyOf())

    /** Return the sums as int64 with the same bits: tensor files have no float64. */
    fun bits(): Tensor = Tensor.of(LongArray(sums.size) { sums[it].toRawBits() }, shape)

    /**
     * Add a tensor that a graph returned.
     *
     * @throws BundleException the tensor has another type, or another shape than the ones before
     */
    fun add(graph: String, value: Tensor) {
        if (value.shape != shape) throw BundleException("graph '$graph' returned $value, expected float32$shape")
        when (value.dtype) {
            DType.FLOAT32 -> value.floats().let { for (i in sums.indices) sums[i] += it.get().toDouble() }
            DType.INT64 -> value.longs().let { for (i in sums.indices) sums[i] += it.get().toDouble() }
            else -> throw BundleException("graph '$graph' returned $value, expected float32$shape")
        }
    }

    /** Return the sum of scalars. */
    fun single(): Double = sums.singleOrNull() ?: throw BundleException("metric of shape $shape, expected a scalar")

    /** Return the sum divided by [count], in float32. */
    fun mean(count: Int): Tensor = Tensor.of(FloatArray(sums.size) { (sums[it] / count).toFloat() }, shape)
}

/** Return [one] minus [other], float32. */
internal fun difference(one: Tensor, other: Tensor): Tensor = combined(one, other) { a, b -> a - b }

/** Return [one] plus [other], float32. */
internal fun sum(one: Tensor, other: Tensor): Tensor = combined(one, other) { a, b -> a + b }

/** Return the tensor with its negative numbers replaced by 0. */
internal fun notNegative(tensor: Tensor): Tensor {
    val numbers = tensor.toFloatArray()
    for (i in numbers.indices) numbers[i] = maxOf(numbers[i], 0f)
    return Tensor.of(numbers, tensor.shape)
}

/**
 * Return the tensors one below the other. They have one type, and one shape but for the first
 * dimension.
 */
internal fun concatenate(parts: List<Tensor>): Tensor {
    val first = parts.first()
    if (parts.any { it.dtype != first.dtype || it.shape.drop(1) != first.shape.drop(1) }) {
        throw BundleException("outputs of different layouts: ${parts.joinToString()}")
    }
    val all = Tensor.allocate(first.dtype, listOf(parts.sumOf { it.rows }) + first.shape.drop(1))
    val target = all.data.duplicate()
    for (part in parts) target.put(part.data.duplicate())
    return all
}

/**
 * Return the [update], of finite numbers, scaled to a Euclidean norm of at most [norm], or
 * unchanged if it is within. Exact: the norm of the result, computed in float64, is never above.
 * Every number is rounded to float32 towards zero (`wire/SPEC.md`, 'Protect').
 */
internal fun clip(update: FloatArray, norm: Double): FloatArray {
    val length = Math.sqrt(update.sumOf { it.toDouble() * it })
    if (length <= norm) return update
    val scale = norm * MARGIN / length
    return FloatArray(update.size) { towardsZero(update[it] * scale) }
}

/**
 * Return the [update] with independent Gaussian noise, drawn and added in float64, then rounded to
 * nearest. Nothing is drawn if [std] is 0.
 */
internal fun addNoise(update: FloatArray, std: Double, noise: Noise): FloatArray =
    if (std == 0.0) update else FloatArray(update.size) { (update[it] + std * noise.next()).toFloat() }

private fun towardsZero(exact: Double): Float {
    val near = exact.toFloat()
    return if (Math.abs(near.toDouble()) > Math.abs(exact)) Math.nextAfter(near, 0.0) else near
}

private inline fun combined(one: Tensor, other: Tensor, operation: (Float, Float) -> Float): Tensor {
    if (one.dtype != DType.FLOAT32 || other.dtype != DType.FLOAT32 || one.shape != other.shape) {
        throw BundleException("change from $other to $one: expected float32 tensors of one shape")
    }
    val (a, b) = Pair(one.floats(), other.floats())
    return Tensor.of(FloatArray(one.size) { operation(a.get(), b.get()) }, one.shape)
}

/**
 * Margin that is far larger than the error of a sum of squares in float64, and far smaller than
 * what float32 resolves.
 */
private const val MARGIN = 1.0 - 1.0 / (1L shl 40)
