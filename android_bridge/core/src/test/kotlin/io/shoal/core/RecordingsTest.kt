package io.shoal.core

import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.encodeTensors
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.TestFactory
import java.io.File
import kotlin.test.Test
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith

class RecordingsTest {
    @TestFactory
    fun `cuts the windows that Python cuts`(): List<DynamicTest> = fromPython("recordings").listFiles()!!.sorted().map { case ->
        DynamicTest.dynamicTest(case.name) {
            val tensors = decodeTensors(File(case, "recordings.safetensors").readBytes()).tensors
            val (length, stride) = tensors.getValue("parameters").toLongArray().map { it.toInt() }
            val recordings = (0 until 3).map { Recording(tensors.getValue("$it.samples"), tensors.getValue("$it.labels").toLongArray()) }
            val cut = windowsOf(recordings, length, stride)
            val made = mapOf("train_x" to cut.trainX, "train_y" to cut.trainY, "test_x" to cut.testX, "test_y" to cut.testY)
            assertContentEquals(File(case, "windows.safetensors").readBytes(), encodeTensors(made))
        }
    }

    @Test
    fun `samples without a label make windows without one`() {
        val samples = Tensor.of(FloatArray(120) { it.toFloat() }, listOf(40, 3))
        val named = windowsOf(listOf(Recording(samples, LongArray(40) { if (it < 16) 1 else NO_LABEL })), 4, 4)
        assertEquals(listOf(4, 0, 5), listOf(named.numTrain, named.numTest, named.numUnlabelled))
        assertEquals(48f, named.unlabelledX.floats().get(0))
        val nameless = windowsOf(listOf(Recording(samples, LongArray(40) { NO_LABEL })), 4, 4)
        assertEquals(listOf(0, 0, 9), listOf(nameless.numTrain, nameless.numTest, nameless.numUnlabelled))
        val other = Tensor.allocate(DType.FLOAT32, listOf(1, 3, 5))
        assertFailsWith<DataException> { Windows(named.trainX, named.trainY, named.testX, named.testY, other) }
        val broken = Tensor.of(FloatArray(12) { Float.NaN }, listOf(1, 3, 4))
        assertFailsWith<DataException> { Windows(named.trainX, named.trainY, named.testX, named.testY, broken) }
    }

    @Test
    fun `recordings that cannot be used are refused`() {
        val short = Recording(Tensor.allocate(DType.FLOAT32, listOf(9, 3)), LongArray(9))
        assertFailsWith<DataException> { windowsOf(emptyList(), 8, 8) }
        assertFailsWith<DataException> { windowsOf(listOf(short), 8, 8) }
        val other = Recording(Tensor.allocate(DType.FLOAT32, listOf(90, 2)), LongArray(90))
        assertFailsWith<DataException> { windowsOf(listOf(short, other), 4, 4) }
        val broken = Recording(Tensor.of(FloatArray(90) { Float.NaN }, listOf(30, 3)), LongArray(30))
        assertFailsWith<DataException> { windowsOf(listOf(broken), 4, 4) }
    }
}
