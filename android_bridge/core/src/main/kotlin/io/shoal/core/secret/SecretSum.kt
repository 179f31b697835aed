package io.shoal.core.secret

import io.shoal.core.ConfigException
import io.shoal.core.EnrolmentKey
import io.shoal.core.InternalShoalApi
import io.shoal.core.MalformedException
import io.shoal.core.PolicyBrokenException
import io.shoal.core.Tensor
import io.shoal.core.Tensors
import io.shoal.core.difference
import io.shoal.core.wire.Mask
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.Names
import io.shoal.core.wire.Plan
import io.shoal.core.wire.Policy
import io.shoal.core.wire.Share
import io.shoal.core.wire.SumQuestion
import io.shoal.core.wire.UPLOAD_BYTES
import io.shoal.core.wire.compareUtf8
import io.shoal.core.wire.digest
import io.shoal.core.wire.fieldsOf
import io.shoal.core.wire.hexOf
import io.shoal.core.wire.jsonText
import java.security.KeyPair
import java.security.MessageDigest
import java.util.Base64

/** Bytes before a share that its device signs. */
private val SIGNED = "shoal/1 secret\n".toByteArray()

/** Name of the part that has a device's number of training windows, by which it counts in a mean. */
private const val ACCURACY = "accuracy"
private const val LOSS = "loss"
private val CLIPS = mapOf(ACCURACY to 1.0, LOSS to 16.0)

/** Smallest number of devices of a sum, unless the owner's policy has another one. */
private const val LEAST_SUM = 5L

/**
 * Policy of a device's owner for secret sums: the keys of the [helpers] that the owner has pinned, in
 * any order, and the smallest number of devices of a sum in which the device takes part.
 */
@InternalShoalApi
public class SecretPolicy internal constructor(internal val helpers: List<HelperKey>, internal val minSum: Long = LEAST_SUM) {
    /**
     * Check a question.
     *
     * @throws PolicyBrokenException the sum may be over fewer devices, or other helpers would open it
     */
    internal fun check(question: SumQuestion) {
        if (question.minSum < minSum) {
            throw PolicyBrokenException("min_sum must be at least $minSum, the owner's limit, got ${question.minSum}")
        }
        val pinned = helpers.mapTo(HashSet()) { it.digest }
        val named = question.helpers
        if (named.toSet().size < named.size || named.toSet() != pinned) {
            throw PolicyBrokenException("helpers must be the ${pinned.size} that the owner has pinned, got ${named.joinToString { it.take(12) }}")
        }
    }

    public companion object {
        /**
         * Return the policy for secret sums, or null if the device takes part in none.
         *
         * @param helpers text of the file of the helpers' keys; null without helpers
         * @param policy what the owner permits
         * @throws ConfigException [helpers] is no such text, or the policy needs helpers
         */
        public fun of(helpers: String?, policy: Policy?): SecretPolicy? {
            val minSum = policy?.minSum
            if (helpers != null) return SecretPolicy(readHelpers(helpers), minSum ?: LEAST_SUM)
            if (minSum == null) return null
            throw ConfigException("policy: minSum $minSum permits reports in secret sums alone, which need the helpers' keys; set helpers")
        }
    }
}

/** Return the digest of what a question is about: the bundle, model and other verbs of a plan. */
internal fun aboutOf(plan: Plan): String {
    val before = plan.verbs.filterNot { it is Mask }.map(::fieldsOf)
    return digest(jsonText(listOf(plan.bundle, plan.model, before)).toByteArray())
}

/**
 * Check that a question is about a [plan], and open. The device then signs which model it started
 * from, and a helper holds all sums about that model against each other.
 *
 * @param nowS aggregator's time, as well as the device knows it
 * @throws PolicyBrokenException it is about another bundle, model or list of verbs, or it is closed
 */
internal fun checkAbout(question: SumQuestion, plan: Plan, nowS: Double) {
    if (question.about != aboutOf(plan)) throw PolicyBrokenException("the question is not about the bundle, model and verbs of its plan")
    val lateS = nowS - question.closesAtS
    if (lateS >= 0) throw PolicyBrokenException("the question was closed ${Math.rint(lateS).toLong()} s ago")
}

/**
 * Return a device's numbers by part: its changes, accuracy and loss.
 *
 * @param update `delta/NAME` and `statistic/NAME`; tensors that are not in it have not changed
 * @param received model that the device received
 * @param measured metrics of the received model on its test windows, and those of its training; the
 *   first ones that are over any windows count, so that every device has some
 * @throws MalformedException a part is no tensor of the model, or has another size; or accuracy or
 *   loss have another clip than theirs
 */
internal fun numbersOf(question: SumQuestion, update: Tensors, received: Tensors, measured: List<Metrics>): Map<String, FloatArray> {
    val metrics = measured.firstOrNull { it.numExamples > 0 } ?: Metrics()
    val examples = maxOf(metrics.numExamples, 1).toDouble()
    val scalars = mapOf(ACCURACY to metrics.numCorrect / examples, LOSS to metrics.lossSum / examples)
    return question.parts.mapValues { (part, wanted) ->
        scalars[part]?.toFloat()?.let {
            if (wanted.count != 1 || wanted.clip != CLIPS[part]) throw MalformedException("question: part '$part' must be one number with the clip ${CLIPS[part]}")
            return@mapValues floatArrayOf(if (it.isFinite()) it else 0f)
        }
        val base = received[part].takeIf { Names.isExchanged(part) }
            ?: throw MalformedException("question: part '${part.take(80)}' is no exchanged tensor of the model")
        val change = changeOf(part, update, base)
        if (change.size != wanted.count) {
            throw MalformedException("question: part '${part.take(80)}' has ${wanted.count} numbers, the tensor ${change.size}")
        }
        val clip = wanted.clip.toFloat()
        FloatArray(change.size) { if (change[it].isFinite()) change[it].coerceIn(-clip, clip) else 0f }
    }
}

private fun changeOf(key: String, update: Tensors, base: Tensor): FloatArray {
    if (Names.roleOf(key) != Names.STATISTIC) return update[Names.delta(Names.nameOf(key))]?.toFloatArray() ?: FloatArray(base.size)
    return update[key]?.let { difference(it, base).toFloatArray() } ?: FloatArray(base.size)
}

/**
 * Device's answer to a question: a [share] for the helpers, which has seeds of the masks and no value,
 * and masked integers for the aggregator, [values] by part as little-endian bytes. It must be stored
 * before it is sent, since a question is answered once only.
 */
internal class SecretAnswer(val share: Share, val values: Map<String, ByteArray>) {
    /** Return the signature of the share by the device's key, in hexadecimal digits. */
    fun signature(key: EnrolmentKey): String = hexOf(key.sign(SIGNED + share.text.toByteArray()))
}

/**
 * Return a device's answer to a question.
 *
 * @param numbers numbers by part, of the counts in the question ([numbersOf])
 * @param draw function that returns so many random bytes, which nobody else may know
 * @param rounding function that returns those that round the numbers
 * @param ephemeral function that returns a new key pair
 * @throws PolicyBrokenException the [policy] forbids the question
 */
internal fun answer(
    question: SumQuestion,
    numbers: Map<String, FloatArray>,
    deviceId: String,
    policy: SecretPolicy,
    draw: (Int) -> ByteArray,
    rounding: (Int) -> ByteArray = draw,
    ephemeral: () -> KeyPair = HelperKey::ephemeral,
): SecretAnswer {
    policy.check(question)
    val keys = policy.helpers.associateBy { it.digest }
    val (count, id) = Pair(question.helpers.size, question.digest)
    val fixed = FixedPoint(question.bits, question.most)
    val integers = question.noise?.let { noised(question.parts, it, numbers, rounding) } ?: question.parts.mapValues { (name, part) ->
        fixed.encode(numbers.getValue(name), part.clip, uniform(part.count, rounding))
    }
    val upload = draw(UPLOAD_BYTES)
    val seeds = List(count) { draw(SEED_BYTES) }
    val values = integers.mapValues { (name, each) -> fixed.masked(each, seeds, name) }
    val purpose = "shoal/1 seeds\n${jsonText(listOf(id, deviceId, base64(upload)))}".toByteArray()
    val sealed = question.helpers.mapIndexed { number, helper ->
        val others = seeds.filterIndexed { seed, _ -> seed != number || count == 1 }
        keys.getValue(helper).seal(others.reduce(ByteArray::plus), purpose, ephemeral())
    }
    return SecretAnswer(Share(id, deviceId, base64(upload), digestOf(values, question.bits), sealed.map(::base64)), values)
}

/** Return the digest of the integers of an upload, in the order of their names. */
private fun digestOf(values: Map<String, ByteArray>, bits: Int): String {
    val total = MessageDigest.getInstance("SHA-256")
    for (name in values.keys.sortedWith(::compareUtf8)) {
        val bytes = values.getValue(name)
        total.update(jsonText(listOf(name, "<u${bits / 8}", bytes.size / (bits / 8))).toByteArray())
        total.update(bytes)
    }
    return hexOf(total.digest())
}

private fun base64(bytes: ByteArray): String = Base64.getEncoder().encodeToString(bytes)
