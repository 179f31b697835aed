package io.shoal.core

import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.FloatBuffer
import java.nio.LongBuffer

/** Data type of the protocol. A number of it takes [size] bytes. */
public enum class DType(internal val fileName: String, internal val manifestName: String, public val size: Int) {
    BOOL("BOOL", "bool", 1),
    UINT8("U8", "uint8", 1),
    INT8("I8", "int8", 1),
    INT32("I32", "int32", 4),
    FLOAT32("F32", "float32", 4),
    INT64("I64", "int64", 8),
    ;

    override fun toString(): String = manifestName
}

/** Tensors by name. */
@InternalShoalApi
public typealias Tensors = Map<String, Tensor>

/**
 * Row-major array of numbers. [data] holds them little-endian, from position 0 to its limit, and
 * never changes after the tensor was handed on. Buffers that are allocated here are direct, so that
 * native code reads them in place. Any thread may read it.
 *
 * @throws IllegalArgumentException a dimension is below 0, or [data] has another size
 */
public class Tensor(public val dtype: DType, public val shape: List<Int>, data: ByteBuffer) {
    /**
     * Numbers. The buffer's own position never moves: read through [floats], [longs] or a
     * duplicate.
     */
    public val data: ByteBuffer = data.slice().order(ByteOrder.LITTLE_ENDIAN)

    init {
        require(shape.all { it >= 0 }) { "tensor $dtype$shape: no dimension may be below 0" }
        require(this.data.limit().toLong() == numBytes(dtype, shape)) {
            "tensor $dtype$shape: expected ${numBytes(dtype, shape)} bytes of data, got ${this.data.limit()}"
        }
    }

    /** Count of its numbers. */
    public val size: Int get() = data.limit() / dtype.size

    /** Size of the first dimension, 1 for a scalar. */
    public val rows: Int get() = shape.firstOrNull() ?: 1

    /**
     * Return a new view of a float32 tensor's numbers.
     *
     * @throws IllegalStateException the tensor has another type
     */
    public fun floats(): FloatBuffer = viewed(DType.FLOAT32).asFloatBuffer()

    /**
     * Return a new view of an int64 tensor's numbers.
     *
     * @throws IllegalStateException the tensor has another type
     */
    public fun longs(): LongBuffer = viewed(DType.INT64).asLongBuffer()

    /**
     * Return a copy of [floats].
     *
     * @throws IllegalStateException the tensor has another type
     */
    public fun toFloatArray(): FloatArray = FloatArray(size).also { floats().get(it) }

    /**
     * Return a copy of [longs].
     *
     * @throws IllegalStateException the tensor has another type
     */
    public fun toLongArray(): LongArray = LongArray(size).also { longs().get(it) }

    /**
     * Return the rows at [chosen], in that order.
     *
     * @throws IllegalArgumentException there is no such row
     */
    public fun take(chosen: IntArray): Tensor {
        val rowBytes = if (rows == 0) 0 else data.limit() / rows
        val selected = allocate(dtype, listOf(chosen.size) + shape.drop(1))
        val source = data.duplicate()
        val target = selected.data.duplicate()
        for (row in chosen) {
            source.limit((row + 1) * rowBytes)
            source.position(row * rowBytes)
            target.put(source)
        }
        return selected
    }

    /** Return true if type, shape and every bit of [other] are the same. */
    override fun equals(other: Any?): Boolean =
        other is Tensor && dtype == other.dtype && shape == other.shape && data.duplicate() == other.data.duplicate()

    override fun hashCode(): Int = 31 * shape.hashCode() + data.duplicate().hashCode()

    override fun toString(): String = "$dtype$shape"

    public companion object {
        /**
         * Return the size of a tensor of this type and shape (bytes). A header may promise more
         * than an Int can hold.
         */
        internal fun numBytes(dtype: DType, shape: List<Int>): Long =
            shape.fold(dtype.size.toLong()) { product, n -> multiply(product, n.toLong()) }

        private fun multiply(a: Long, b: Long): Long = if (a != 0L && b > Long.MAX_VALUE / a) Long.MAX_VALUE else a * b

        /**
         * Return a tensor of zeros, to be written through its [data] before it is handed on.
         *
         * @throws IllegalArgumentException a dimension is below 0, or it is too large
         */
        @JvmStatic
        public fun allocate(dtype: DType, shape: List<Int>): Tensor {
            val bytes = numBytes(dtype, shape)
            require(bytes in 0..Int.MAX_VALUE) { "tensor $dtype$shape: it must have 0 to ${Int.MAX_VALUE} bytes, got $bytes" }
            return Tensor(dtype, shape, ByteBuffer.allocateDirect(bytes.toInt()))
        }

        private fun allocate(dtype: DType, shape: List<Int>, count: Int): Tensor = allocate(dtype, shape).also {
            require(it.size == count) { "tensor $dtype$shape: expected ${it.size} numbers, got $count" }
        }

        /**
         * Return a float32 tensor with these numbers, by default a vector.
         *
         * @throws IllegalArgumentException [shape] has another size
         */
        @JvmStatic
        @JvmOverloads
        public fun of(numbers: FloatArray, shape: List<Int> = listOf(numbers.size)): Tensor =
            allocate(DType.FLOAT32, shape, numbers.size).also { it.floats().put(numbers) }

        /**
         * Return an int64 tensor with these numbers, by default a vector.
         *
         * @throws IllegalArgumentException [shape] has another size
         */
        @JvmStatic
        @JvmOverloads
        public fun of(numbers: LongArray, shape: List<Int> = listOf(numbers.size)): Tensor =
            allocate(DType.INT64, shape, numbers.size).also { it.longs().put(numbers) }

        /** Return a float32 scalar. */
        @InternalShoalApi
        public fun scalar(number: Float): Tensor = of(floatArrayOf(number), emptyList())
    }

    private fun viewed(expected: DType): ByteBuffer {
        check(dtype == expected) { "tensor of $dtype cannot be read as $expected" }
        return data.duplicate().order(ByteOrder.LITTLE_ENDIAN)
    }
}
