package io.shoal.core.secret

import io.shoal.core.FolderStorage
import io.shoal.core.MalformedException
import io.shoal.core.PolicyBrokenException
import io.shoal.core.Tensor
import io.shoal.core.repository
import io.shoal.core.wire.Fields
import io.shoal.core.wire.JsonArray
import io.shoal.core.wire.JsonNumber
import io.shoal.core.wire.JsonString
import io.shoal.core.wire.Plane
import io.shoal.core.wire.SumPart
import io.shoal.core.wire.SumQuestion
import io.shoal.core.wire.SurveySum
import io.shoal.core.wire.TellGroup
import io.shoal.core.wire.Verb
import io.shoal.core.wire.digest
import io.shoal.core.wire.fieldsOf
import io.shoal.core.wire.jsonText
import io.shoal.core.wire.parseJson
import io.shoal.core.wire.verbOf
import java.io.File
import kotlin.io.path.createTempDirectory
import kotlin.math.abs
import kotlin.test.Test
import kotlin.test.assertContains
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue

/** The device's half of groups from sums is that of `wire/vectors/secret.json`. */
class SurveysTest {
    private val vectors = Fields(parseJson(File(repository, "wire/vectors/secret.json").readBytes()), "secret.json")

    private fun cases(key: String): List<Fields> = vectors.list(key) { it, path -> Fields(it, path) }

    private fun verb(text: String): Verb = verbOf(Fields(parseJson(text.toByteArray()), "verb"), "verb")

    private fun Fields.floats(key: String) = list(key) { it, _ -> (it as JsonNumber).text.toLong() }.let { bits -> FloatArray(bits.size) { Float.fromBits(bits[it].toInt()) } }

    private fun Fields.keys(key: String) = map(key) { _, _ -> }.keys

    private fun survey(case: Fields) = case.obj("survey").let { all -> case.keys("survey").associateWith { Tensor.of(all.floats(it)) } }

    @Test
    fun `numbers and nodes of surveys are those of the vectors`() {
        assertTrue(cases("surveys").size >= 50)
        for (case in cases("surveys")) {
            val verb = verb(case.string("verb"))
            assertEquals(case.string("verb"), jsonText(fieldsOf(verb)), "the verb is written as it was read")
            val make = { DeviceSurvey.of(survey(case)) }
            val problem = case.stringOrNull("problem")
            when {
                problem != null && verb is SurveySum -> assertEquals(problem, assertFailsWith<MalformedException> { make().numbers(verb) }.message)
                problem != null && verb is TellGroup -> assertEquals(problem, assertFailsWith<MalformedException> { make().coordinates(verb.scale) }.message)
                verb is TellGroup -> assertEquals(case.string("node"), nodeOf(make().coordinates(verb.scale), verb.planes))
                verb is SurveySum -> {
                    val numbers = make().numbers(verb)
                    assertEquals(case.keys("numbers"), numbers.keys)
                    for ((part, values) in numbers) {
                        val expected = case.obj("numbers").floats(part)
                        assertEquals(expected.size, values.size, part)
                        for (i in values.indices) assertTrue(abs(values[i] - expected[i]) <= 1e-6f * maxOf(1f, abs(expected[i])), "$part $i: ${values[i]}, not ${expected[i]}")
                    }
                    val numInputs = verb.scale?.mean?.size ?: numbers["means"]?.size ?: 0
                    val parts = case.map("parts") { each, _ -> (each as JsonArray).items.map { (it as JsonNumber).text.toDouble() } }
                    assertEquals(parts.mapValues { (_, part) -> SumPart(part[0].toInt(), part[1]) }, verb.parts(numInputs))
                }
            }
        }
    }

    @Test
    fun `numbers are rounded by the bytes of the vectors, whenever an exchange is asked for`() {
        assertTrue(cases("roundings").size >= 5)
        for (case in cases("roundings")) {
            val seed = case.string("seed").chunked(2).map { it.toInt(16).toByte() }.toByteArray()
            repeat(2) {
                val draw = roundingOf(seed, case.string("bundle"), verb(case.string("verb")) as SurveySum)
                assertEquals(case.list("drawn") { each, _ -> (each as JsonString).value }, listOf(4, 400, 12).map { digest(draw(it)) })
            }
        }
    }

    @Test
    fun `verbs with fields that do not fit each other are refused`() {
        val hostile = vectors.list("hostile_surveys") { it, _ -> (it as JsonString).value }
        assertTrue(hostile.size >= 20)
        for (text in hostile) assertFailsWith<MalformedException>(text.take(300)) { verb(text) }
    }

    @Test
    fun `a question has the parts and the integers of its exchange`() {
        val exchange = SurveySum("scale")
        val numbers = mapOf("sketch" to FloatArray(32), "length" to FloatArray(1))
        val good = SumQuestion("a".repeat(64), exchange.parts(0), 32, 4_095, 5, listOf("b".repeat(64)), 1.0)
        checkSurvey(good, exchange, numbers)
        val wrong = listOf(good.copy(bits = 16), good.copy(most = 20), good.copy(parts = emptyMap()), good.copy(parts = good.parts.mapValues { it.value.copy(clip = 1.0) }))
        for (question in wrong) assertFailsWith<MalformedException> { checkSurvey(question, exchange, numbers) }
    }

    @Test
    fun `a device is bound to one scale, one plane of a node and one exchange of each kind, for each bundle`() {
        val verbs = cases("surveys").map { verb(it.string("verb")) }
        val moments = verbs.first { it is SurveySum && it.kind == "moments" && it.planes.size == 1 } as SurveySum
        val tell = TellGroup(moments.scale!!, moments.planes)
        val folder = createTempDirectory().toFile()
        fun store() = SurveyStore(FolderStorage(folder))
        val seed = store().bind("bundle", moments)
        assertContentEquals(seed, store().bind("bundle", moments), "after a restart")
        assertContentEquals(seed, store().bind("bundle", tell))
        val scale = tell.scale
        val moved = moments.planes.map { it.copy(threshold = it.threshold + 0.1) }
        fun refused(text: String, verb: io.shoal.core.wire.SurveyVerb) =
            assertContains(assertFailsWith<PolicyBrokenException> { store().bind("bundle", verb) }.message!!, "survey: $text was another one before")
        refused("plane", TellGroup(scale, moved))
        refused("scale", TellGroup(scale.copy(origin = scale.origin.map { it + 0.1 }), moments.planes))
        refused("plane", moments.copy(planes = moved))
        store().bind("another bundle", TellGroup(scale, moved))
        store().bind("bundle", TellGroup(scale, moments.planes + Plane("0", moments.planes[0].axis, 0.5)))
        refused("plane 0", TellGroup(scale, moments.planes + Plane("0", moments.planes[0].axis, 0.6)))
        FolderStorage(folder).erase()
        refused("plane", TellGroup(scale, moved)) // also after the phone's data were erased
        File(folder, "surveys").appendText("x")
        assertContains(assertFailsWith<PolicyBrokenException> { store().bind("bundle", tell) }.message!!, "damaged")
    }
}
