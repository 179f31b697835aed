package io.shoal.core

import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.encodeTensors
import java.nio.ByteBuffer
import kotlin.test.Test
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertNotEquals
import kotlin.test.assertTrue

class TensorTest {
    @Test
    fun `rows are taken in the order asked for`() {
        val tensor = Tensor.of(floatArrayOf(1f, 2f, 3f, 4f, 5f, 6f), listOf(3, 2))
        assertContentEquals(floatArrayOf(5f, 6f, 1f, 2f, 5f, 6f), tensor.take(intArrayOf(2, 0, 2)).toFloatArray())
        assertEquals(listOf(0, 2), tensor.take(intArrayOf()).shape)
        assertEquals(listOf(1, 0), Tensor.allocate(DType.FLOAT32, listOf(3, 0)).take(intArrayOf(1)).shape)
    }

    @Test
    fun `numbers are little-endian and direct`() {
        val tensor = Tensor.of(longArrayOf(0x0102))
        assertEquals(2, tensor.data.get(0))
        assertTrue(tensor.data.isDirect)
        assertEquals(1.5f, Tensor.scalar(1.5f).floats().get(0))
        assertFailsWith<IllegalStateException> { tensor.floats() }
    }

    @Test
    fun `equality is that of type, shape and bits`() {
        val tensor = Tensor.of(floatArrayOf(0f, Float.NaN))
        assertEquals(tensor, Tensor.of(floatArrayOf(0f, Float.NaN)))
        assertNotEquals(tensor, Tensor.of(floatArrayOf(-0f, Float.NaN)))
        assertNotEquals(tensor, Tensor.of(floatArrayOf(0f, Float.NaN), listOf(1, 2)))
    }

    @Test
    fun `data and shape must fit`() {
        assertFailsWith<IllegalArgumentException> { Tensor(DType.FLOAT32, listOf(2), ByteBuffer.allocate(7)) }
        assertFailsWith<IllegalArgumentException> { Tensor(DType.FLOAT32, listOf(-1, -2), ByteBuffer.allocate(8)) }
        for (count in listOf(0, 5, 7)) {
            val error = assertFailsWith<IllegalArgumentException>("$count numbers") { Tensor.of(FloatArray(count), listOf(2, 3)) }
            assertEquals("tensor float32[2, 3]: expected 6 numbers, got $count", error.message)
            assertFailsWith<IllegalArgumentException>("$count numbers") { Tensor.of(LongArray(count), listOf(2, 3)) }
        }
        for (shape in listOf(listOf(-1), listOf(1 shl 20, 1 shl 20), listOf(0, -5))) {
            assertFailsWith<IllegalArgumentException>("$shape") { Tensor.allocate(DType.INT64, shape) }
        }
    }

    @Test
    fun `a heap buffer in the midst of another is read from its position`() {
        val buffer = ByteBuffer.allocate(20)
        buffer.position(4)
        buffer.limit(12)
        val tensor = Tensor(DType.INT64, listOf(1), buffer)
        buffer.put(4, 9)
        assertContentEquals(longArrayOf(9), tensor.toLongArray())
        assertEquals(mapOf("x" to tensor), decodeTensors(encodeTensors(mapOf("x" to tensor))).tensors)
    }
}
