package io.shoal.core

import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.FloatBuffer
import java.nio.LongBuffer

/** A data type of the protocol; a number of it takes [size] bytes. */
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

/** Named tensors. */
@InternalShoalApi
public typealias Tensors = Map<String, Tensor>

/**
 * A row-major array of numbers. [data] holds them little-endian, from position 0 to its limit; nobody writes into it after the tensor
 * was handed on. Buffers made here are direct, so that native code reads them where they lie.
 */
public class Tensor(public val dtype: DType, public val shape: List<Int>, data: ByteBuffer) {
    /** The numbers; the buffer's own position never moves: read through [floats], [longs] or a duplicate. */
    public val data: ByteBuffer = data.slice().order(ByteOrder.LITTLE_ENDIAN)

    init {
        require(this.data.limit().toLong() == numBytes(dtype, shape)) {
            "${this.data.limit()} bytes for a tensor $dtype$shape of ${numBytes(dtype, shape)}"
        }
    }

    /** How many numbers it holds. */
    public val size: Int get() = data.limit() / dtype.size

    /** The first dimension; of a scalar 1. */
    public val rows: Int get() = shape.firstOrNull() ?: 1

    /**
     * A fresh view of a float32 tensor's numbers.
     *
     * @throws IllegalStateException a tensor of another type
     */
    public fun floats(): FloatBuffer = viewed(DType.FLOAT32).asFloatBuffer()

    /**
     * A fresh view of an int64 tensor's numbers.
     *
     * @throws IllegalStateException a tensor of another type
     */
    public fun longs(): LongBuffer = viewed(DType.INT64).asLongBuffer()

    /** A copy of what [floats] shows. */
    public fun toFloatArray(): FloatArray = FloatArray(size).also { floats().get(it) }

    /** A copy of what [longs] shows. */
    public fun toLongArray(): LongArray = LongArray(size).also { longs().get(it) }

    /** The rows at [chosen], in that order. */
    public fun take(chosen: IntArray): Tensor {
        val rowBytes = if (rows == 0) 0 else data.limit() / rows
        val taken = allocate(dtype, listOf(chosen.size) + shape.drop(1))
        val source = data.duplicate()
        val target = taken.data.duplicate()
        for (row in chosen) {
            source.limit((row + 1) * rowBytes)
            source.position(row * rowBytes)
            target.put(source)
        }
        return taken
    }

    /** Whether type, shape and every bit of [other] are the same. */
    override fun equals(other: Any?): Boolean =
        other is Tensor && dtype == other.dtype && shape == other.shape && data.duplicate() == other.data.duplicate()

    override fun hashCode(): Int = 31 * shape.hashCode() + data.duplicate().hashCode()

    override fun toString(): String = "$dtype$shape"

    public companion object {
        /** The bytes that a tensor of this type and shape takes; more than an Int holds where a header promises it. */
        internal fun numBytes(dtype: DType, shape: List<Int>): Long =
            shape.fold(dtype.size.toLong()) { product, n -> multiply(product, n.toLong()) }

        private fun multiply(a: Long, b: Long): Long = if (a != 0L && b > Long.MAX_VALUE / a) Long.MAX_VALUE else a * b

        /** A tensor of zeros, to be written through its [data] before it is handed on. */
        @JvmStatic
        public fun allocate(dtype: DType, shape: List<Int>): Tensor =
            Tensor(dtype, shape, ByteBuffer.allocateDirect(Math.toIntExact(numBytes(dtype, shape))))

        /** A float32 tensor with these numbers; without a shape a vector. */
        @JvmStatic
        @JvmOverloads
        public fun of(numbers: FloatArray, shape: List<Int> = listOf(numbers.size)): Tensor =
            allocate(DType.FLOAT32, shape).also { it.floats().put(numbers) }

        /** An int64 tensor with these numbers; without a shape a vector. */
        @JvmStatic
        @JvmOverloads
        public fun of(numbers: LongArray, shape: List<Int> = listOf(numbers.size)): Tensor =
            allocate(DType.INT64, shape).also { it.longs().put(numbers) }

        /** A float32 scalar. */
        @InternalShoalApi
        public fun scalar(number: Float): Tensor = of(floatArrayOf(number), emptyList())
    }

    private fun viewed(expected: DType): ByteBuffer {
        check(dtype == expected) { "a tensor of $dtype read as $expected" }
        return data.duplicate().order(ByteOrder.LITTLE_ENDIAN)
    }
}
