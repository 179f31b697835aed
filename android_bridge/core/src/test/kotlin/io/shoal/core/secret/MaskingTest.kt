package io.shoal.core.secret

import io.shoal.core.BrokerAddress
import io.shoal.core.ConfigException
import io.shoal.core.FakeAggregator
import io.shoal.core.FakeLoader
import io.shoal.core.Fixture
import io.shoal.core.FolderStorage
import io.shoal.core.Killed
import io.shoal.core.MalformedException
import io.shoal.core.MemoryKey
import io.shoal.core.Mortal
import io.shoal.core.Phone
import io.shoal.core.PlanResult
import io.shoal.core.PolicyBrokenException
import io.shoal.core.Stage
import io.shoal.core.Tensor
import io.shoal.core.Tensors
import io.shoal.core.newPair
import io.shoal.core.wire.Acknowledge
import io.shoal.core.wire.CheckIn
import io.shoal.core.wire.DeclineReason
import io.shoal.core.wire.Evaluate
import io.shoal.core.wire.InUse
import io.shoal.core.wire.Mask
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.Plan
import io.shoal.core.wire.Plane
import io.shoal.core.wire.Policy
import io.shoal.core.wire.SURVEY_BITS
import io.shoal.core.wire.SURVEY_MOST
import io.shoal.core.wire.SURVEY_WIDTH
import io.shoal.core.wire.Share
import io.shoal.core.wire.SignedShare
import io.shoal.core.wire.SumPart
import io.shoal.core.wire.SumQuestion
import io.shoal.core.wire.SurveyScale
import io.shoal.core.wire.SurveySum
import io.shoal.core.wire.TellGroup
import io.shoal.core.wire.Train
import io.shoal.core.wire.Update
import io.shoal.core.wire.Verb
import io.shoal.core.wire.decode
import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.decodeUpdate
import io.shoal.core.wire.digest
import org.junit.jupiter.api.io.TempDir
import java.io.File
import java.io.IOException
import java.security.KeyFactory
import java.security.Signature
import java.security.spec.X509EncodedKeySpec
import java.util.Base64
import kotlin.test.Test
import kotlin.test.assertContains
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertNotEquals
import kotlin.test.assertNull
import kotlin.test.assertTrue

/** A device answers a question of a secret sum once, whatever ends it in between. */
class MaskingTest {
    @TempDir
    lateinit var folder: File

    private val key = MemoryKey()
    private val helpers = List(3) { HelperKey(newPair().public.encoded) }
    private val secret = SecretPolicy(helpers)
    private val model = decodeTensors(Fixture.model).tensors
    private val parts = mapOf("shared/w" to SumPart(6, 0.25), "statistic/n.running_mean" to SumPart(3, 8.0))
    private val question = SumQuestion("a".repeat(64), parts, 16, 20, 5, helpers.map { it.digest }, 2000.0)

    /** Return a plan that ends with a question about it. */
    private fun masked(round: Long = 1, verbs: List<Verb> = listOf(Train(8)), change: SumQuestion.() -> SumQuestion = { this }): Plan {
        val plan = Fixture.plan(round, verbs = verbs)
        return plan.copy(verbs = verbs + Mask(question.copy(about = aboutOf(plan)).change()))
    }

    private fun device(folder: File = this.folder, policy: Policy? = null, secret: SecretPolicy? = this.secret) =
        FakeAggregator(FolderStorage(folder), policy = policy, secret = secret, key = key)

    private fun FakeAggregator.update(plan: Plan): Pair<Update, Tensors> {
        plan(plan)
        offer()
        assertEquals(emptyList(), declines().map { it.detail })
        return decodeUpdate(sent("update").single())
    }

    private fun isSigned(signed: SignedShare) = Signature.getInstance("SHA256withECDSA").run {
        initVerify(KeyFactory.getInstance("EC").generatePublic(X509EncodedKeySpec(key.publicKey)))
        update("shoal/1 secret\n${signed.share.text}".toByteArray())
        verify(signed.signature.chunked(2).map { it.toInt(16).toByte() }.toByteArray())
    }

    @Test
    fun `the update of a masked plan has masked integers, a signed share, and nothing else of the data`() {
        val plan = masked(verbs = listOf(Evaluate(), Train(8), Evaluate("train", "survey")))
        val (update, tensors) = device(policy = Policy(tellClasses = true)).up().update(plan)
        val share = update.share!!
        assertTrue(isSigned(share))
        assertEquals(Triple(maskOfPlan(plan).digest, "phone", 3), share.share.run { Triple(question, deviceId, sealed.size) })
        assertEquals(parts.mapKeys { "masked/${it.key}" }.mapValues { (_, part) -> listOf(2 * part.count) }, tensors.mapValues { it.value.shape })
        val other = update.copy(share = null)
        assertEquals(Update("run", 5, 1, 0, "phone", digest(Fixture.model), 0, 0, Metrics(), Metrics(), update.bytesReceived), other)
    }

    private fun maskOfPlan(plan: Plan) = (plan.verbs.last() as Mask).question

    @Test
    fun `a question that must not be answered declines its plan, and says why`() {
        val cases: List<Pair<SumQuestion.() -> SumQuestion, String>> = listOf(
            Pair({ copy(about = "b".repeat(64)) }, "min_sum: the question is not about the bundle, model and verbs of its plan"),
            Pair({ copy(closesAtS = 999.0) }, "min_sum: the question was closed 1 s ago"),
            Pair({ copy(minSum = 4) }, "min_sum: min_sum must be at least 5"),
            Pair({ copy(helpers = helpers.take(2)) }, "min_sum: helpers must be the 3 that the owner has pinned"),
        )
        val device = device().up()
        cases.forEachIndexed { number, (change, detail) ->
            device.plan(masked(number + 1L, change = change))
            device.offer()
            val decline = device.declines().single()
            assertEquals(DeclineReason.POLICY, decline.reason)
            assertContains(decline.detail, detail)
        }
        val without = device(File(folder, "without"), secret = null).up()
        without.plan(masked())
        without.offer()
        assertEquals(DeclineReason.POLICY, without.declines().single().also { assertContains(it.detail, "no helpers' keys") }.reason)
        assertNull(FolderStorage(folder).answers())
    }

    @Test
    fun `a question that does not fit the model is not answered`() {
        for (wrong in listOf("shared/w" to SumPart(5, 1.0), "private/p" to SumPart(4, 1.0), "shared/none" to SumPart(1, 1.0))) {
            assertFailsWith<MalformedException>("$wrong") { numbersOf(question.copy(parts = mapOf(wrong)), emptyMap(), model + ("private/p" to Tensor.of(FloatArray(4))), emptyList()) }
        }
    }

    @Test
    fun `an update that is lost before it is answered is made again with the same answer`() {
        val plan = masked()
        val (first, tensors) = device().up().update(plan)
        File(folder, "update").writeBytes(byteArrayOf(1))
        val again = device().up()
        again.work()
        val (second, same) = decodeUpdate(again.sent("update").single())
        assertEquals(first.share, second.share)
        assertEquals(tensors, same)
    }

    private fun answered(question: SumQuestion, text: String, folder: File = this.folder): String {
        val share = Share(question.digest, "phone", "AAAAAAAAAAAAAAAAAAAAAA==", "c".repeat(64), emptyList())
        val tensors = mapOf("masked/p" to Tensor.of(text.map { it.code.toFloat() }.toFloatArray()))
        val answer = AnswerStore(FolderStorage(folder)).once(question) { MaskedResult(SignedShare(share, "00"), tensors) }.also { it.store() }
        assertEquals(question.digest, answer.signed.share.question)
        return answer.tensors.getValue("masked/p").toFloatArray().map { it.toInt().toChar() }.joinToString("")
    }

    @Test
    fun `a question gets the same bytes, and none after another one`() {
        val other = question.copy(about = "b".repeat(64))
        assertEquals("first", answered(question, "first"))
        assertEquals("first", answered(question, "second"))
        assertEquals("third", answered(other, "third"))
        assertContains(assertFailsWith<PolicyBrokenException> { answered(question, "again") }.message!!, "question ${question.digest.take(12)} was answered before")
        assertEquals("third", answered(other, "fourth"))
    }

    @Test
    fun `questions of many rounds are remembered, also by a device whose data were erased`() {
        val questions = List(40) { question.copy(closesAtS = it.toDouble()) }
        questions.forEach { answered(it, "once") }
        FolderStorage(folder).erase()
        for (each in questions) assertFailsWith<PolicyBrokenException> { answered(each, "twice") }
        assertEquals("new", answered(question, "new"))
        assertTrue(FolderStorage(folder).answers()!!.size < 40 * 32 + 1000)
    }

    @Test
    fun `an answer that fails or cannot be stored is not given`() {
        val store = AnswerStore(FolderStorage(folder))
        assertFailsWith<IllegalStateException> { store.once(question) { error("no answer") } }
        val blocked = File(folder, "answers.new").apply { mkdir() }
        assertFailsWith<IOException> { answered(question, "lost") }
        val full = device().up()
        full.plan(masked())
        full.offer()
        assertEquals(listOf(DeclineReason.FAILED), full.declines().map { it.reason })
        assertNull(FolderStorage(folder).update())
        blocked.delete()
        assertEquals("first", answered(question, "first"))
    }

    @Test
    fun `a damaged file is never deleted, and answers nothing more`() {
        answered(question, "first")
        val file = File(folder, "answers")
        val whole = file.readBytes()
        for (at in listOf(0, 70, whole.size - 1)) {
            file.writeBytes(whole.copyOf().also { it[at] = (it[at] + 1).toByte() })
            for (each in listOf(question, question.copy(about = "b".repeat(64)))) {
                assertContains(assertFailsWith<PolicyBrokenException> { answered(each, "second") }.message!!, "Enrol it anew")
            }
            FolderStorage(folder).erase()
            assertTrue(file.exists())
        }
        file.writeBytes(whole.copyOf(20))
        assertFailsWith<PolicyBrokenException> { answered(question, "second") }
    }

    @Test
    fun `a device that dies at any write gives one answer alone`() {
        val plans = listOf(masked(1), masked(2))
        val whole = answers(File(folder, "whole"), plans, 0, false)
        for (at in 1..17) for (after in listOf(false, true)) {
            val answers = answers(File(folder, "$at-$after"), plans, at, after)
            assertEquals(whole.keys, answers.keys)
            for ((round, tensors) in answers) assertNotEquals(whole.getValue(round), tensors, "masks are drawn anew on another device")
        }
    }

    /**
     * Carry out plans on a device that ends at its write number [killAt], and starts again. Return the
     * masked integers of each round, which are the same in all updates of the round and in the
     * stored answer.
     */
    private fun answers(folder: File, plans: List<Plan>, killAt: Int, after: Boolean): Map<Long, Tensors> {
        val answers = HashMap<Long, Tensors>()
        var device = FakeAggregator(Mortal(FolderStorage(folder), killAt, after), secret = secret, key = key)
        var turns = 0
        fun hear() {
            for (payload in device.sent("update")) {
                val (update, tensors) = decodeUpdate(payload)
                assertEquals(answers.getOrPut(update.round) { tensors }, tensors, "another answer to the same question")
                val stored = AnswerStore(FolderStorage(folder)).once(maskOfPlan(plans[update.round.toInt() - 1])) { error("not stored") }
                assertEquals(tensors, stored.tensors)
                device.reply(Acknowledge("phone", digest(payload)))
            }
        }
        for (plan in plans) {
            while (device.agent.session.let { it.plan?.round != plan.round || it.stage != Stage.ANSWERED }) {
                check(turns++ < 2 * plans.size) { "${device.declines()}" }
                try {
                    device.up()
                    device.plan(plan)
                    device.offer()
                    hear()
                } catch (_: Killed) {
                    device = FakeAggregator(FolderStorage(folder), secret = secret, key = key)
                }
            }
        }
        return answers
    }

    @Test
    fun `an owner who permits sums alone tells nothing of the data elsewhere`() {
        val policy = Policy(minSum = 5, tellClasses = true)
        val device = device(policy = policy).up()
        val checkIn = decode<CheckIn>(device.sent("check-in").first())
        assertEquals(listOf(policy, null, false), listOf(checkIn.policy, checkIn.classes, checkIn.moved))
        assertEquals(listOf(0L, 0L), listOf(checkIn.numTest, checkIn.numUnlabelled))
        device.plan(Fixture.plan(1))
        assertEquals("min_sum: the plan does not end with mask", device.declines().single().detail)
        device.plan(Fixture.plan(2, verbs = listOf(Train(8, report = false))))
        assertEquals("min_sum: the plan does not end with mask", device.declines().single().detail)
        device.reply(Fixture.finish())
        device.offer()
        assertEquals(Metrics(), device.agent.session.offer!!.evaluated)
        val inUse = decode<InUse>(device.sent("in-use").last())
        assertEquals(listOf(digest(Fixture.model), Metrics(), Metrics()), inUse.run { listOf(model, evaluated, before) })
        assertEquals(parts.size, device.update(masked(3)).second.size)
        device.plan(masked(4, verbs = listOf(Train(8, graph = "none"))))
        device.offer()
        assertEquals(listOf(DeclineReason.FAILED to ""), device.declines().map { it.reason to it.detail })
        device.after(100.0)
        assertEquals(emptyList(), device.sent("error"))
    }

    @Test
    fun `a plan of a survey masks its numbers, and the one after it tells the node alone`() {
        val survey = Evaluate("train", "survey", "initial", report = false)
        val exchange = SurveySum("scale")
        val device = device(policy = Policy(minSum = 5)).up()
        val asked = masked(verbs = listOf(survey, exchange)) { copy(parts = exchange.parts(0), bits = SURVEY_BITS, most = SURVEY_MOST, group = "") }
        val (answer, numbers) = device.update(asked)
        assertEquals(setOf("masked/sketch", "masked/length"), numbers.keys)
        assertEquals("" to maskOfPlan(asked).digest, answer.node to answer.share!!.share.question)
        val scale = SurveyScale(emptyList(), emptyList(), List(SURVEY_WIDTH) { 0.0 }, listOf(1.0))
        val sides = listOf(-100.0 to "1", 100.0 to "0").mapIndexed { round, (threshold, side) ->
            val plane = Plane("", List(SURVEY_WIDTH) { 1.0 / (it + 1) }, threshold)
            val other = device(File(folder, side), policy = Policy(minSum = 5)).up()
            val (told, nothing) = other.update(Fixture.plan(2L + round, verbs = listOf(survey, TellGroup(scale, listOf(plane)))))
            assertEquals(emptyMap(), nothing)
            assertEquals(Update("run", 5, 2L + round, 0, "phone", digest(Fixture.model), 0, 0, Metrics(), Metrics(), told.bytesReceived, node = side), told)
            told.node
        }
        assertEquals(listOf("1", "0"), sides)
    }

    @Test
    fun `a device of another node is bound by the plane that it declines`() {
        val survey = Evaluate("train", "survey", "initial", report = false)
        val scale = SurveyScale(emptyList(), emptyList(), List(SURVEY_WIDTH) { 0.0 }, listOf(1.0))
        val device = device(policy = Policy(minSum = 5)).up()
        val declines = listOf(100.0, 99.0).mapIndexed { number, threshold ->
            val exchange = SurveySum("moments", "1", scale, listOf(Plane("", List(SURVEY_WIDTH) { 1.0 / (it + 1) }, threshold)))
            device.plan(masked(number + 1L, listOf(survey, exchange)) { copy(parts = exchange.parts(0), bits = SURVEY_BITS, most = SURVEY_MOST) })
            device.offer()
            device.declines().single()
        }
        assertEquals(listOf(DeclineReason.FAILED, DeclineReason.POLICY), declines.map { it.reason })
        assertContains(declines.last().detail, "min_sum: survey: plane was another one before")
    }

    private fun pem(key: HelperKey): String =
        "-----BEGIN PUBLIC KEY-----\n${Base64.getMimeEncoder(64, byteArrayOf(10)).encodeToString(key.der)}\n-----END PUBLIC KEY-----\n"

    @Test
    fun `the file of helpers is read, or it is said what is wrong with it`() {
        val one = "helper one\n${pem(helpers[0])}"
        val text = one + "\nhelper two\n" + pem(helpers[1])
        assertEquals(helpers.take(2).map { it.digest }, SecretPolicy.of(text, null)!!.helpers.map { it.digest })
        assertEquals(listOf(5L, 9L), listOf(null, Policy(minSum = 9)).map { SecretPolicy.of(text, it)!!.minSum })
        assertNull(SecretPolicy.of(null, Policy()))
        val five = (1..5).joinToString("") { "helper h$it\n${pem(HelperKey(newPair().public.encoded))}" }
        val wrong = listOf(
            "" to "line 1: expected a line 'helper NAME'",
            pem(helpers[0]) to "line 1: expected",
            "$one\nmore" to "line 7: expected",
            one + one to "two have the name one",
            one + one.replace("one", "two") to "two have the same key",
            five to "5 are given, at most 4",
            one.replace("MF", "M-") to "line 1: expected",
            one.replace("MF", "M!") to "the key of one is not PEM",
            one.replace("MFkw", "") to "expected P-256",
        )
        for ((bad, problem) in wrong) assertContains(assertFailsWith<ConfigException>(problem) { SecretPolicy.of(bad, null) }.message!!, problem)
        fun phone(helpers: String?, policy: Policy?) =
            Phone("phone", "f", BrokerAddress.parse("mqtt://b"), Fixture.windows, FolderStorage(folder), FakeLoader(), Fixture.keys, policy = policy, helpers = helpers)
        assertContains(assertFailsWith<ConfigException> { phone(null, Policy(minSum = 5)) }.message!!, "set helpers")
        assertContains(assertFailsWith<ConfigException> { phone(text, null) }.message!!, "helpers need the key of this device's certificate")
    }
}
