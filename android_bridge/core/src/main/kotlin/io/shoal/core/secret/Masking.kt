package io.shoal.core.secret

import io.shoal.core.DType
import io.shoal.core.EnrolmentKey
import io.shoal.core.MalformedException
import io.shoal.core.PlanResult
import io.shoal.core.PolicyBrokenException
import io.shoal.core.Storage
import io.shoal.core.Tensor
import io.shoal.core.Tensors
import io.shoal.core.surveying
import io.shoal.core.wire.Fields
import io.shoal.core.wire.Limits
import io.shoal.core.wire.Names
import io.shoal.core.wire.Plan
import io.shoal.core.wire.SignedShare
import io.shoal.core.wire.SumQuestion
import io.shoal.core.wire.SurveySum
import io.shoal.core.wire.SurveyVerb
import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.encodeTensors
import io.shoal.core.wire.fieldsOf
import io.shoal.core.wire.hexOf
import io.shoal.core.wire.jsonText
import io.shoal.core.wire.parseJson
import io.shoal.core.wire.signedShareOf
import java.nio.ByteBuffer
import java.security.SecureRandom

/**
 * A device's [signed] share, and the [tensors] of its update, which are masked integers. [store] must be
 * called before the update is stored or sent.
 */
internal class MaskedResult(val signed: SignedShare, val tensors: Tensors, val store: () -> Unit = {})

/**
 * Means of a device to answer questions of secret sums (`edge_client.work.masking`). [key] is that
 * of its certificate, [draw] a source of random bytes that nobody else knows.
 */
internal class Masking(
    private val policy: SecretPolicy,
    private val key: EnrolmentKey,
    private val answers: AnswerStore,
    private val surveys: SurveyStore,
    private val draw: (Int) -> ByteArray = { ByteArray(it).also(SecureRandom()::nextBytes) },
) {
    /**
     * Return the answer to the [question] of a [plan] that was carried out: the same one whenever the
     * question comes again.
     *
     * @param received model from which the device has started
     * @param nowS aggregator's time, as well as the device knows it
     * @throws PolicyBrokenException the owner's policy forbids the answer, the question is not about
     *   the plan or is closed, or it was answered before
     * @throws MalformedException the question does not fit the model
     */
    fun answer(question: SumQuestion, plan: Plan, result: PlanResult, received: Tensors, nowS: Double): MaskedResult {
        policy.check(question)
        checkAbout(question, plan, nowS)
        return answers.once(question) {
            val survey = surveying(plan) as? SurveySum
            val numbers = if (survey == null) {
                numbersOf(question, result.tensors, received, listOf(result.evaluated, result.trained))
            } else {
                result.numbers!!.also { checkSurvey(question, survey, it) }
            }
            val rounding = survey?.let { roundingOf(surveys.bind(plan.bundle, it), plan.bundle, it) } ?: draw
            val answer = answer(question, numbers, plan.deviceId, policy, draw, rounding)
            val tensors = answer.values.entries.associate { (part, bytes) -> Names.masked(part) to bytesTensor(bytes) }
            MaskedResult(SignedShare(answer.share, answer.signature(key)), tensors)
        }
    }

    /**
     * Bind the device to a [survey], before it works on it.
     *
     * @throws PolicyBrokenException the device is bound to another survey
     */
    fun bind(plan: Plan, survey: SurveyVerb) {
        surveys.bind(plan.bundle, survey)
    }

    /**
     * Return the node that the device tells, by a plan that it has carried out.
     *
     * @throws PolicyBrokenException the device is bound to another survey
     */
    fun node(tell: SurveyVerb, plan: Plan, result: PlanResult): String {
        if (result.node.isEmpty()) throw PolicyBrokenException("survey: the device is in no node of the plan")
        surveys.bind(plan.bundle, tell)
        return result.node
    }
}

/**
 * Answers to questions of secret sums: a device gives one to each question, for ever. Numbers are
 * rounded at random, and a device's data change: two answers to one question would tell more of the
 * device than the question does. [storage] has the digest of every question that was answered, and
 * the last answer.
 */
internal class AnswerStore(private val storage: Storage) {
    /**
     * Return the answer to a [question]: the stored one, or a new one by [make], which is to be stored.
     *
     * @throws PolicyBrokenException the question was answered before another one, and its answer is no
     *   longer stored; or what is stored is damaged
     * @throws java.io.IOException the storage cannot be read
     */
    fun once(question: SumQuestion, make: () -> MaskedResult): MaskedResult {
        val (answered, last) = load()
        val id = question.digest
        if (last != null && answered.last() == id) return last
        if (id in answered) throw PolicyBrokenException("question ${id.take(12)} was answered before, and a device answers once")
        return make().run { MaskedResult(signed, tensors) { storage.saveAnswers(encodeAnswers(answered + id, this)) } }
    }

    /** Forget the last answer, but no question: a device that comes back answers none again. */
    fun forgetLast() {
        val (answered, last) = try {
            load()
        } catch (_: PolicyBrokenException) { // it answers nothing any more
            return
        }
        if (last != null) storage.saveAnswers(encodeAnswers(answered, null))
    }

    private fun load(): Pair<List<String>, MaskedResult?> = try {
        storage.answers()?.let(::decodeAnswers) ?: Pair(emptyList(), null)
    } catch (error: MalformedException) {
        throw PolicyBrokenException(
            "the answers file is damaged (${error.message}), so this device no longer knows which questions it has answered. " +
                "Enrol it anew, with an empty state folder.",
        )
    }

    private companion object {
        const val QUESTIONS = "questions"
        const val ANSWER = "answer"

        /** Return the answered questions (their digests) in order, and the answer to the last one, as bytes. */
        fun encodeAnswers(answered: List<String>, last: MaskedResult?): ByteArray {
            val questions = answered.flatMap { digest -> digest.chunked(2).map { it.toInt(16).toByte() } }.toByteArray()
            val answer = last?.let { encodeTensors(it.tensors, jsonText(fieldsOf(it.signed))) } ?: ByteArray(0)
            return encodeTensors(mapOf(QUESTIONS to bytesTensor(questions), ANSWER to bytesTensor(answer)))
        }

        /**
         * Return the content of [encodeAnswers].
         *
         * @throws MalformedException the bytes are damaged
         */
        fun decodeAnswers(content: ByteArray): Pair<List<String>, MaskedResult?> {
            val stored = decodeTensors(content, Limits.OWN_FILES).tensors
            val answer = bytesOf(stored, ANSWER)
            val last = answer.takeIf { it.isNotEmpty() }?.let { decodeTensors(it, Limits.OWN_FILES) }
                ?.run { MaskedResult(signedShareOf(Fields(parseJson(message.toByteArray()), "answer")), tensors) }
            return Pair(hexOf(bytesOf(stored, QUESTIONS)).chunked(64), last)
        }

        fun bytesOf(stored: Tensors, name: String): ByteArray {
            val tensor = stored[name] ?: throw MalformedException("its tensor '$name' is missing")
            return ByteArray(tensor.data.limit()).also { tensor.data.duplicate().get(it) }
        }
    }
}

private fun bytesTensor(bytes: ByteArray): Tensor = Tensor(DType.UINT8, listOf(bytes.size), ByteBuffer.wrap(bytes))
