package io.shoal.core

import io.shoal.core.wire.CheckIn
import io.shoal.core.wire.Json
import io.shoal.core.wire.JsonArray
import io.shoal.core.wire.JsonNull
import io.shoal.core.wire.JsonNumber
import io.shoal.core.wire.JsonObject
import io.shoal.core.wire.JsonString
import io.shoal.core.wire.Names
import io.shoal.core.wire.decode
import io.shoal.core.wire.decodeUpdate
import io.shoal.core.wire.parseJson
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.TestFactory
import org.junit.jupiter.api.io.TempDir
import java.io.File
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertSame
import kotlin.test.assertTrue

class QuantisedTest {
    @TempDir
    lateinit var folder: File

    private val cases = vectors.getValue("encoded").list().map { (it as JsonObject).fields }

    private fun changeOf(case: Map<String, Json>): Tensors = (case.getValue("changes") as JsonObject).fields.entries.associate { (name, change) ->
        val (shape, bits) = (change as JsonObject).fields.let { Pair(it.getValue("shape"), it.getValue("bits")) }
        Names.delta(name) to Tensor.of(bits.numbers().map { Float.fromBits(it.toInt()) }.toFloatArray(), shape.numbers().map { it.toInt() })
    }

    @TestFactory
    fun `the change of a vector has its values and scales`(): List<DynamicTest> {
        assertTrue(cases.size >= 10)
        return cases.map { case ->
            DynamicTest.dynamicTest(case.text("name")) {
                val tensors = changeOf(case)
                val sent = Quantised.encoded(tensors, "int8", (case.getValue("seed") as JsonNumber).text.toLong(), case.text("device_id"))
                if (case["values"] === JsonNull) {
                    assertSame(tensors, sent)
                } else {
                    assertEquals(setOf(Names.INT8_VALUES, Names.INT8_SCALES), sent.keys)
                    val bytes = sent.getValue(Names.INT8_VALUES).data
                    assertEquals(case.getValue("values").numbers(), List(bytes.limit()) { bytes.get(it).toLong() })
                    val scales = sent.getValue(Names.INT8_SCALES).toFloatArray()
                    assertEquals(case.getValue("scales").numbers().map { it.toInt() }, scales.map { it.toRawBits() })
                }
            }
        }
    }

    @Test
    fun `in float32 an update stays as it is`() {
        val tensors = changeOf(cases.first())
        assertSame(tensors, Quantised.encoded(tensors, "float32", 1, "phone"))
    }

    @Test
    fun `a plan that asks for int8 is answered in it, and nothing but the change is encoded`() {
        val usual = updateOf("float32")
        val sent = updateOf("int8")
        assertEquals(Quantised.encoded(usual, "int8", Fixture.plan().seed, "phone"), sent)
        val statistics = usual.keys.filter { Names.roleOf(it) == Names.STATISTIC }
        assertEquals(statistics.toSet() + setOf(Names.INT8_VALUES, Names.INT8_SCALES), sent.keys)
        assertEquals(listOf(9), sent.getValue(Names.INT8_VALUES).shape)
    }

    private fun updateOf(encoding: String): Tensors {
        val device = FakeAggregator(FolderStorage(File(folder, encoding))).up()
        assertEquals(listOf("int8"), decode<CheckIn>(device.sent("check-in").first()).encodings)
        device.plan(Fixture.plan().copy(encoding = encoding))
        device.offer()
        return decodeUpdate(device.sent("update").single()).second
    }

    private companion object {
        val vectors = (parseJson(File(repository, "wire/vectors/int8.json").readBytes()) as JsonObject).fields

        fun Json.list() = (this as JsonArray).items

        fun Json.numbers() = list().map { (it as JsonNumber).text.toLong() }

        fun Map<String, Json>.text(key: String) = (getValue(key) as JsonString).value
    }
}
