package io.shoal.core.secret

import io.shoal.core.ConfigException
import io.shoal.core.MalformedException
import io.shoal.core.MemoryKey
import io.shoal.core.PolicyBrokenException
import io.shoal.core.Tensor
import io.shoal.core.maskOf
import io.shoal.core.permittedFacts
import io.shoal.core.repository
import io.shoal.core.wire.CheckIn
import io.shoal.core.wire.Fields
import io.shoal.core.wire.JsonNumber
import io.shoal.core.wire.JsonString
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.Noise
import io.shoal.core.wire.Plan
import io.shoal.core.wire.Share
import io.shoal.core.wire.SumPart
import io.shoal.core.wire.SumQuestion
import io.shoal.core.wire.decode
import io.shoal.core.wire.digest
import io.shoal.core.wire.encode
import io.shoal.core.wire.hexOf
import io.shoal.core.wire.jsonText
import io.shoal.core.wire.parseJson
import java.io.File
import java.security.KeyFactory
import java.security.KeyPair
import java.security.Signature
import java.security.spec.PKCS8EncodedKeySpec
import java.security.spec.X509EncodedKeySpec
import java.util.Random
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertNotEquals
import kotlin.test.assertTrue

/** The device's half of secret sums is that of `wire/vectors/secret.json`, bit for bit. */
class SecretSumTest {
    private val vectors = Fields(parseJson(File(repository, "wire/vectors/secret.json").readBytes()), "secret.json")
    private val device = vectors.obj("device")

    private fun cases(key: String): List<Fields> = vectors.list(key) { it, path -> Fields(it, path) }

    private fun unhex(hex: String): ByteArray = hex.chunked(2).map { it.toInt(16).toByte() }.toByteArray()

    private fun Fields.bytes(key: String): ByteArray = unhex(string(key))

    private fun Fields.longs(key: String): List<Long> = list(key) { it, _ -> (it as JsonNumber).text.toLong() }

    private fun pair(of: Fields, private: String, public: String): KeyPair = KeyFactory.getInstance("EC").run {
        KeyPair(generatePublic(X509EncodedKeySpec(of.bytes(public))), generatePrivate(PKCS8EncodedKeySpec(of.bytes(private))))
    }

    private fun floats(bits: List<Long>) = FloatArray(bits.size) { Float.fromBits(bits[it].toInt()) }

    private fun policy(case: Fields): SecretPolicy =
        SecretPolicy(case.list("pinned") { it, _ -> HelperKey(unhex((it as JsonString).value)) }, case.positive("min_sum"))

    /** Return the answer of a case. Its numbers and random bytes are those of [drawn], or of the case. */
    private fun answered(case: Fields, drawn: ByteArray = case.bytes("drawn")): SecretAnswer {
        val numbers = case.obj("numbers").let { all -> case.map("numbers") { _, _ -> }.keys.associateWith { floats(all.longs(it)) } }
        val ephemerals = case.list("ephemerals") { it, path -> pair(Fields(it, path), "private", "public") }.iterator()
        var at = 0
        return answer(SumQuestion.of(case.obj("question")), numbers, device.string("id"), policy(case), { drawn.copyOfRange(at, at + it).also { at += it.size } }) {
            ephemerals.next()
        }.also { assertEquals(drawn.size, at) }
    }

    private val taken: List<Fields> get() = cases("answers").filter { it.stringOrNull("problem") == null }

    @Test
    fun `numbers become the integers of the vectors`() {
        assertTrue(cases("integers").size >= 6)
        for (case in cases("integers")) {
            val fixed = FixedPoint(case.count("bits").toInt(), case.positive("most"))
            val uniform = case.longs("draws").map { it / 4294967296.0 }.toDoubleArray()
            val integers = fixed.encode(floats(case.longs("numbers")), case.double("clip"), uniform)
            val unsigned = integers.map { it.toLong() and ((1L shl fixed.bits) - 1) }
            assertEquals(case.longs("integers"), unsigned, "${fixed.bits} bits, ${case.positive("most")} devices")
        }
    }

    @Test
    fun `masks are those of the vectors`() {
        assertTrue(cases("masks").size >= 5)
        for (case in cases("masks")) {
            val mask = FixedPoint(case.count("bits").toInt(), 1).mask(case.bytes("seed"), case.string("part"), case.count("count").toInt())
            assertEquals(case.string("mask"), digest(mask), case.string("part"))
        }
    }

    @Test
    fun `a sealed text is that of the vectors, and otherwise never the same`() {
        assertTrue(cases("sealed").size >= 3)
        for (case in cases("sealed")) {
            val (helper, text, purpose) = Triple(HelperKey(case.bytes("public")), case.bytes("text"), case.bytes("purpose"))
            val ephemeral = pair(case, "ephemeral", "ephemeral_public")
            assertEquals(case.string("sealed"), hexOf(helper.seal(text, purpose, ephemeral)))
            assertNotEquals(hexOf(helper.seal(text, purpose, HelperKey.ephemeral())), hexOf(helper.seal(text, purpose, HelperKey.ephemeral())))
        }
    }

    @Test
    fun `what is no P-256 key seals nothing`() {
        val key = cases("sealed").first().bytes("public")
        val beside = key.copyOf().also { it[it.size - 1] = (it.last() + 1).toByte() } // a point beside the curve
        for (wrong in listOf(ByteArray(0), key.copyOf(90), key + 0, key.copyOf().also { it[20] = 6 }, key.copyOf().also { it[26] = 2 })) {
            assertFailsWith<ConfigException> { HelperKey(wrong) }
        }
        assertFailsWith<ConfigException> { HelperKey(beside) }
    }

    @Test
    fun `an answer is that of the vectors, byte by byte`() {
        assertTrue(taken.size >= 5)
        for (case in taken) {
            val name = case.string("name")
            val answer = answered(case)
            assertEquals(case.string("digest"), SumQuestion.of(case.obj("question")).digest, name)
            assertEquals(case.string("share"), answer.share.text, name)
            assertEquals(answer.share, Share.of(Fields(parseJson(answer.share.text.toByteArray()), "share")))
            val fixed = FixedPoint(case.obj("question").count("bits").toInt(), 1)
            for ((part, values) in answer.values) {
                val expected = fixed.bytes(case.obj("values").longs(part).map { it.toInt() }.toIntArray())
                assertEquals(hexOf(expected), hexOf(values), "$name: $part")
            }
            assertEquals(case.map("values") { _, _ -> }.keys, answer.values.keys)
        }
    }

    @Test
    fun `numbers of another count than the question's are not sent`() {
        val fixed = FixedPoint(16, 20)
        for (count in listOf(0, 2, 4)) assertFailsWith<IllegalArgumentException> { fixed.encode(FloatArray(count), 1.0, DoubleArray(3)) }
    }

    @Test
    fun `other random bytes hide the same numbers behind others`() {
        for (case in taken) {
            val drawn = case.bytes("drawn").map { (it + 1).toByte() }.toByteArray()
            val (one, other) = Pair(answered(case), answered(case, drawn))
            for (part in one.values.keys) assertNotEquals(hexOf(one.values.getValue(part)), hexOf(other.values.getValue(part)), part)
        }
    }

    @Test
    fun `a share is signed by its device`() {
        val pair = pair(device, "private", "public")
        val key = MemoryKey(pair)
        fun isSigned(signature: ByteArray, share: String) = Signature.getInstance("SHA256withECDSA").run {
            initVerify(pair.public)
            update("shoal/1 secret\n$share".toByteArray())
            verify(signature)
        }
        for (case in taken) {
            assertTrue(isSigned(case.bytes("signature"), case.string("share")), "Python signed the same bytes")
            assertTrue(isSigned(unhex(answered(case).signature(key)), case.string("share")))
        }
    }

    @Test
    fun `a question that the owner forbids is declined in the words of the vectors, and nothing is drawn`() {
        val refused = cases("answers").filter { it.stringOrNull("problem") != null }
        assertTrue(refused.size >= 7)
        for (case in refused) {
            val draw = { _: Int -> throw AssertionError("nothing is computed") }
            val error = assertFailsWith<PolicyBrokenException>(case.string("name")) {
                answer(SumQuestion.of(case.obj("question")), emptyMap(), "phone", policy(case), draw)
            }
            assertEquals(case.string("problem"), error.message)
        }
    }

    @Test
    fun `a question is about its plan and open, or declined in the words of the vectors`() {
        assertTrue(cases("plans").size >= 5)
        for (case in cases("plans")) {
            val plan = decode<Plan>(case.string("plan").toByteArray())
            val check = { checkAbout(maskOf(plan)!!.question, plan, case.double("now_s")) }
            val problem = case.stringOrNull("problem")
            if (problem == null) check() else assertEquals(problem, assertFailsWith<PolicyBrokenException>(case.string("name")) { check() }.message)
        }
    }

    @Test
    fun `the numbers of a change are those of the vectors`() {
        assertTrue(cases("numbers").size >= 4)
        for (case in cases("numbers")) {
            val metrics = case.list("measured") { value, _ -> (value as JsonNumber).text.toDouble() }
                .chunked(3) { (examples, loss, correct) -> Metrics(examples.toLong(), loss, correct.toLong()) }
            fun tensors(key: String) = case.map(key) { _, _ -> }.keys.associateWith { Tensor.of(floats(case.obj(key).longs(it))) }
            val make = { numbersOf(SumQuestion.of(case.obj("question")), tensors("update"), tensors("received"), metrics) }
            if (case.stringOrNull("problem") != null) {
                assertFailsWith<MalformedException>(case.string("name")) { make() }
                continue
            }
            val numbers = make()
            val bits = numbers.mapValues { (_, each) -> each.map { it.toRawBits().toLong() and 0xffffffffL } }
            assertEquals(numbers.keys.associateWith { case.obj("numbers").longs(it) }, bits, case.string("name"))
            assertEquals(case.map("numbers") { _, _ -> }.keys, bits.keys)
        }
    }

    @Test
    fun `a check-in has no facts of the data where the owner permits sums alone`() {
        assertTrue(cases("check_ins").size >= 8)
        for (case in cases("check_ins")) {
            val facts = decode<CheckIn>(case.string("facts").toByteArray())
            assertEquals(case.string("permitted"), encode(permittedFacts(facts.policy!!, facts)).decodeToString())
        }
    }

    @Test
    fun `a clip near 0 is answered as well`() {
        val parts = mapOf("a" to SumPart(3, 1e-320), "b" to SumPart(2, 1.0))
        val numbers = mapOf("a" to FloatArray(3), "b" to FloatArray(2) { 0.5f })
        val integers = noised(parts, Noise(100.0, 4.0), numbers) { ByteArray(it).also(Random(0)::nextBytes) }
        assertTrue(integers.values.all { each -> each.all { it in -99..99 } })
    }

    @Test
    fun `what is no question is said`() {
        val good = linkedMapOf<String, Any?>("about" to "a".repeat(64), "parts" to mapOf("w" to mapOf("count" to 3, "clip" to 0.5)), "bits" to 16, "most" to 20)
        good += mapOf("min_sum" to 5, "helpers" to listOf("b".repeat(64)), "closes_at_s" to 1.5, "scheme" to "masks")
        fun question(changes: Map<String, Any?>) = SumQuestion.of(Fields(parseJson(jsonText(good + changes).toByteArray()), "question"))
        assertEquals(5, question(emptyMap()).minSum)
        val wrong = listOf(
            "about" to "a",
            "parts" to mapOf("w" to mapOf("count" to 0, "clip" to 0.5)),
            "parts" to mapOf("w" to mapOf("count" to 3, "clip" to 0.0)),
            "bits" to 24,
            "most" to 0,
            "min_sum" to 0,
            "helpers" to emptyList<String>(),
            "helpers" to List(5) { "b".repeat(64) },
            "helpers" to null,
            "scheme" to "pine",
            "most" to 4096,
            "type" to "share",
        )
        for (change in wrong) assertFailsWith<MalformedException>("$change") { question(mapOf(change)) }
    }
}
