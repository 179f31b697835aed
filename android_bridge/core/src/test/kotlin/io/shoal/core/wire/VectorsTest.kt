package io.shoal.core.wire

import io.shoal.core.MalformedException
import io.shoal.core.Tensor
import io.shoal.core.UntrustedException
import io.shoal.core.WireException
import io.shoal.core.brokenRule
import io.shoal.core.fromPython
import io.shoal.core.reportedClasses
import io.shoal.core.repository
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.TestFactory
import java.io.File
import kotlin.test.Test
import kotlin.test.assertContains
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue

/**
 * Vectors of the protocol for every implementation, and messages that the Python side generated.
 */
class VectorsTest {
    private val vectors = File(repository, "wire/vectors")
    private val golden = File(vectors, "golden")
    private val signed = File(vectors, "signed")

    @TestFactory
    fun `golden message is read and written to the same bytes`() = tests(golden, ".json") { payload ->
        assertContentEquals(payload, encode(decodeAny(payload)))
    }

    @TestFactory
    fun `message of a later minor version is read as this one would have written it`() = tests(File(vectors, "newer"), ".json") { payload ->
        assertTrue("\"later\"" in payload.decodeToString())
        val message = decodeAny(payload)
        assertContains(golden.listFiles()!!.filter { it.extension == "json" }.map { decodeAny(it.readBytes()) }, message)
    }

    @TestFactory
    fun `signed message is believed or not`(): List<DynamicTest> {
        val verifier = Verifier("default", PublicKey.parse(File(signed, "TRUST.pem").readText()))
        val files = signed.listFiles()!!.filter { it.name != "TRUST.pem" }.sorted()
        assertTrue(files.count { it.name.startsWith("good") } >= 3 && files.count { it.name.startsWith("bad") } >= 12)
        return files.map { file ->
            DynamicTest.dynamicTest(file.name) {
                if (file.name.startsWith("good")) {
                    assertContentEquals(file.readBytes().decodeToString().lines()[0].toByteArray(), encode(open(verifier, file)))
                } else {
                    assertFailsWith<WireException> { open(verifier, file) }
                }
            }
        }
    }

    @Test
    fun `a voucher is looked at again when its time is over`() {
        val verifier = Verifier("default", PublicKey.parse(File(signed, "TRUST.pem").readText()))
        open(verifier, File(signed, "good-plan"))
        val error = assertFailsWith<UntrustedException> { open(verifier, File(signed, "good-plan"), 1826841600.0 + 10) }
        assertTrue("ended 10 s ago" in error.message!!)
    }

    @Test
    fun `who trusts no key takes the first line`() {
        val plan = open(Verifier("default", emptyList()), File(signed, "good-plan"))
        assertEquals(plan, open(Verifier("default", emptyList()), File(signed, "bad-unsigned")))
        assertFailsWith<MalformedException> { open(Verifier("default", emptyList()), File(signed, "bad-two-lines")) }
    }

    private fun open(verifier: Verifier, file: File, nowS: Double = 1795305612.0): Message = verifier.open(file.readBytes(), nowS)

    @TestFactory
    fun `policy permits or forbids`(): List<DynamicTest> {
        val file = Fields(parseJson(File(vectors, "policy.json").readBytes()), "policy.json")
        val about = file.obj("about")
        val cases = file.list("cases") { it, path -> Fields(it, path) }
        assertTrue(cases.size >= 30)
        return cases.map { case ->
            DynamicTest.dynamicTest(case.string("name")) {
                val labels = about.list("labels") { it, path -> Fields.countOf(it, path) }
                val measuring = about.strings("measuring").toSet()
                val policy = policyOf(case.obj("policy"))
                assertEquals(policy, Policy.parse(policy.toJson()))
                val rule = brokenRule(policy, messageOf(case.obj("plan")) as Plan, about.string("bundle"), measuring, Tensor.of(labels.toLongArray()), about.count("num_test").toInt())
                assertEquals(case.string("rule"), rule.orEmpty().substringBefore(':'))
            }
        }
    }

    @TestFactory
    fun `class counts are reported if the policy permits it`(): List<DynamicTest> {
        val cases = Fields(parseJson(File(vectors, "policy.json").readBytes()), "policy.json").list("told") { it, path -> Fields(it, path) }
        assertTrue(cases.size >= 5)
        return cases.map { case ->
            DynamicTest.dynamicTest(case.string("name")) {
                val y = case.list("y") { it, path -> Fields.countOf(it, path) }.toLongArray()
                assertEquals(case.countsOrNull("classes", 1000), reportedClasses(policyOf(case.obj("policy")), Tensor.of(y)))
            }
        }
    }

    @Test
    fun `golden update is read and written to the same bytes`() {
        val payload = File(golden, "update.safetensors").readBytes()
        val (update, tensors) = decodeUpdate(payload)
        assertEquals(Metrics(63, 41.25, 50), update.evaluated)
        assertContentEquals(floatArrayOf(0.5f, -0.25f, 1f, 0f), tensors.getValue("delta/head.weight").toFloatArray())
        assertContentEquals(payload, encodeUpdate(update, tensors))
    }

    @Test
    fun `golden tensor file is read and written to the same bytes`() {
        val payload = File(golden, "tensors.safetensors").readBytes()
        assertContentEquals(payload, encodeTensors(decodeTensors(payload).tensors))
    }

    @TestFactory
    fun `hostile message is refused`() = tests(File(repository, "wire/vectors/hostile"), ".json") { payload ->
        assertFailsWith<WireException> { decodeAny(payload) }
    }

    @TestFactory
    fun `hostile tensor file is refused`() = tests(File(repository, "wire/vectors/hostile"), ".safetensors") { payload ->
        assertFailsWith<WireException> { decodeTensors(payload) }
    }

    @Test
    fun `made-up message is read and written to the same bytes`() {
        val lines = fromPython("messages.jsonl").readLines()
        assertTrue(lines.size >= 200)
        for (line in lines) assertEquals(line, encode(decodeAny(line.toByteArray())).decodeToString())
    }

    @Test
    fun `made-up tensor file is read and written to the same bytes`() {
        val files = fromPython("tensors").listFiles()!!
        assertTrue(files.size >= 30)
        for (file in files) {
            val (tensors, message) = decodeTensors(file.readBytes())
            assertContentEquals(file.readBytes(), encodeTensors(tensors, message), file.name)
        }
    }

    @Test
    fun `name of a tensor is parsed`() {
        val vectors = names("parsed")
        assertTrue(vectors.size >= 30)
        for (vector in vectors) {
            val key = vector.text("key")
            assertEquals(vector.text("role"), Names.roleOf(key), key)
            assertEquals(vector.text("name"), Names.nameOf(key), key)
            assertEquals(JsonBoolean(Names.isExchanged(key)), vector["is_exchanged"], key)
            assertEquals(JsonBoolean(Names.isVariance(key)), vector["is_variance"], key)
            val next = if (vector.text("without_next") == key) emptyMap() else mapOf(vector.text("without_next") to 1)
            assertEquals(next, Names.part(mapOf(key to 1), Names.NEXT), key)
        }
    }

    @Test
    fun `name of a tensor is built`() {
        val builders: Map<String, (String, String) -> String> = mapOf(
            "shared" to { name, _ -> Names.shared(name) },
            "started_from" to { key, _ -> Names.startedFrom(key) },
            "delta" to { name, _ -> Names.delta(name) },
            "response" to { graph, metric -> Names.response(graph, metric) },
            "batch" to { column, _ -> Names.batch(column) },
            "hyper" to { name, _ -> Names.hyper(name) },
            "metric" to { name, _ -> Names.metric(name) },
            "column" to { name, _ -> Names.column(name) },
            "personal" to { key, _ -> Names.personal(key) },
            "memory" to { name, _ -> Names.memory(name) },
        )
        val vectors = names("built").filter { it.text("function") in builders }
        assertEquals(builders.keys, vectors.map { it.text("function") }.toSet())
        for (vector in vectors) {
            val arguments = (vector.getValue("arguments") as JsonArray).items.map { (it as JsonString).value }
            val built = builders.getValue(vector.text("function"))(arguments[0], arguments.getOrElse(1) { "" })
            assertEquals(vector.text("key"), built)
        }
    }

    private fun names(kind: String): List<Map<String, Json>> {
        val file = parseJson(File(repository, "wire/vectors/names.json").readBytes()) as JsonObject
        return (file.fields.getValue(kind) as JsonArray).items.map { (it as JsonObject).fields }
    }

    private fun Map<String, Json>.text(name: String) = (getValue(name) as JsonString).value

    private fun tests(folder: File, suffix: String, body: (ByteArray) -> Unit): List<DynamicTest> {
        val files = folder.listFiles()!!.filter { it.name.endsWith(suffix) }.sorted()
        assertTrue(files.size >= 10)
        return files.map { DynamicTest.dynamicTest(it.name) { body(it.readBytes()) } }
    }
}
