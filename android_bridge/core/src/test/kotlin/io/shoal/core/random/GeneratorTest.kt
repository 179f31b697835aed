package io.shoal.core.random

import io.shoal.core.fromPython
import io.shoal.core.repository
import io.shoal.core.wire.JsonArray
import io.shoal.core.wire.JsonNumber
import io.shoal.core.wire.JsonObject
import io.shoal.core.wire.parseJson
import java.io.File
import kotlin.math.abs
import kotlin.math.sqrt
import kotlin.test.Test
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertTrue

/** Numbers equal to numpy's (`numpy.json`, written by `python -m tests.android.numpy_vectors`). */
class GeneratorTest {
    @Test
    fun `draws what numpy draws`() = compare(File(repository, "android_bridge/core/src/test/resources/numpy.json"), 60)

    @Test
    fun `draws what numpy draws from many seeds`() = compare(fromPython("numpy.json"), 500)

    private fun compare(file: File, least: Int) {
        val cases = (parseJson(file.readBytes()) as JsonArray).items
        assertTrue(cases.size >= least)
        for (case in cases) {
            val fields = (case as JsonObject).fields
            val random = Generator(*longs(fields["seeds"]))
            for (count in longs(fields["counts"])) {
                val expected = longs((fields["orders"] as JsonObject).fields[count.toString()])
                assertEquals(expected.toList(), random.permutation(count.toInt()).map { it.toLong() })
            }
            val bits = longs(fields["float_bits"])
            assertContentEquals(bits, random.floats(bits.size).map { it.toRawBits().toLong() }.toLongArray())
        }
    }

    @Test
    fun `noise has mean 0 and variance 1 and differs each time`() {
        val noise = Noise.fromEntropy()
        val drawn = DoubleArray(100_000) { noise.next() }
        val mean = drawn.average()
        assertTrue(abs(mean) < 0.02)
        assertEquals(1.0, sqrt(drawn.sumOf { (it - mean) * (it - mean) } / drawn.size), 0.02)
        assertEquals(0.0455, drawn.count { abs(it) > 2 } / drawn.size.toDouble(), 0.005)
        assertTrue(Noise.fromEntropy().next() != Noise.fromEntropy().next())
    }

    private fun longs(value: Any?) = (value as JsonArray).items.map { (it as JsonNumber).text.toLong() }.toLongArray()
}
