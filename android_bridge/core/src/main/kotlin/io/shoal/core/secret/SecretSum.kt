package io.shoal.core.secret

import io.shoal.core.EnrolmentKey
import io.shoal.core.MalformedException
import io.shoal.core.PolicyBrokenException
import io.shoal.core.wire.Fields
import io.shoal.core.wire.compareUtf8
import io.shoal.core.wire.digest
import io.shoal.core.wire.hexOf
import io.shoal.core.wire.jsonText
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.security.KeyPair
import java.security.MessageDigest
import java.util.Base64

/** Number of random bytes of the id of an upload. */
private const val UPLOAD_BYTES = 16

/** Largest number of helpers of a question. */
private const val MOST_HELPERS = 4

/** Bytes before a share that its device signs. */
private val SIGNED = "shoal/1 secret\n".toByteArray()

/** Numbers of one tensor: their [count], and the largest absolute value of one, [clip]. */
internal class SumPart(val count: Int, val clip: Double)

/**
 * Question of an aggregator, which asks every device of a cohort for the same numbers (`wire/SPEC.md`,
 * 'Secret sums'). [about] is the digest of what is computed, [most] the largest number of devices of
 * the sum, [minSum] the smallest, and [helpers] the digests of the helpers' keys.
 */
internal class SumQuestion private constructor(
    val about: String,
    val parts: Map<String, SumPart>,
    val bits: Int,
    val most: Long,
    val minSum: Long,
    val helpers: List<String>,
    val closesAtS: Double,
) {
    /** Identity of the question: SHA-256 of its bytes. */
    val digest: String
        get() {
            val wanted = parts.mapValues { (_, part) -> linkedMapOf("count" to part.count, "clip" to part.clip) }
            val values = linkedMapOf("type" to "sum-question", "about" to about, "parts" to wanted, "bits" to bits, "most" to most)
            val more = linkedMapOf("min_sum" to minSum, "helpers" to helpers, "closes_at_s" to closesAtS, "scheme" to SCHEME)
            return digest(jsonText(values + more).toByteArray())
        }

    internal companion object {
        private const val SCHEME = "masks"

        /**
         * Return the question of a JSON object.
         *
         * @throws MalformedException a field is missing or wrong
         */
        fun of(fields: Fields): SumQuestion {
            fields.oneOf("scheme", listOf(SCHEME), SCHEME)
            val parts = fields.map("parts") { value, path ->
                Fields(value, path).run { SumPart(int("count", 1L..Int.MAX_VALUE).toInt(), double("clip", expected = "above 0") { it > 0 }) }
            }
            val bits = if (fields.int("bits", 16L..32L) == 16L) 16 else fields.int("bits", 32L..32L).toInt()
            val helpers = fields.digestsOrNull("helpers", MOST_HELPERS).orEmpty()
            if (helpers.isEmpty()) throw MalformedException("question.helpers: expected 1 to $MOST_HELPERS SHA-256")
            return SumQuestion(
                fields.digest("about"),
                parts,
                bits,
                fields.positive("most"),
                fields.positive("min_sum"),
                helpers,
                fields.double("closes_at_s"),
            )
        }
    }
}

/**
 * Rules of a device's owner for secret sums: the [helpers] that are pinned, in any order, and the
 * least number of devices of a sum.
 */
internal class SecretPolicy(val helpers: List<HelperKey>, val minSum: Long = 5) {
    /**
     * Check a question.
     *
     * @throws PolicyBrokenException the sum may be over fewer devices, or other helpers would open it
     */
    fun check(question: SumQuestion) {
        if (question.minSum < minSum) {
            throw PolicyBrokenException("min_sum must be at least $minSum, the owner's limit, got ${question.minSum}")
        }
        val pinned = helpers.mapTo(HashSet()) { it.digest }
        val named = question.helpers
        if (named.toSet().size < named.size || named.toSet() != pinned) {
            throw PolicyBrokenException("helpers must be the ${pinned.size} that the owner has pinned, got ${named.joinToString { it.take(12) }}")
        }
    }
}

/**
 * Device's answer to a [question] (its digest): masked integers for the aggregator, [values] by part
 * as little-endian bytes, and a share for the helpers, which has seeds of the masks and no value.
 * It must be stored before it is sent, since a question is answered once only.
 */
internal class SecretAnswer(
    question: String,
    deviceId: String,
    upload: ByteArray,
    bits: Int,
    val values: Map<String, ByteArray>,
    sealed: List<ByteArray>,
) {
    /** Message for the helpers. */
    val share: String = jsonText(
        linkedMapOf(
            "type" to "share",
            "question" to question,
            "device_id" to deviceId,
            "upload" to base64(upload),
            "values" to digestOf(values, bits),
            "sealed" to sealed.map(::base64),
        ),
    )

    /** Return the signature of the share by the device's key, in hexadecimal digits. */
    fun signature(key: EnrolmentKey): String = hexOf(key.sign(SIGNED + share.toByteArray()))
}

/**
 * Return a device's answer to a question.
 *
 * @param numbers numbers by part, of the counts in the question
 * @param draw function that returns so many random bytes, which nobody else may know
 * @param ephemeral function that returns a new key pair
 * @throws PolicyBrokenException the [policy] forbids the question
 */
internal fun answer(
    question: SumQuestion,
    numbers: Map<String, FloatArray>,
    deviceId: String,
    policy: SecretPolicy,
    draw: (Int) -> ByteArray,
    ephemeral: () -> KeyPair = HelperKey::ephemeral,
): SecretAnswer {
    policy.check(question)
    val keys = policy.helpers.associateBy { it.digest }
    val (count, id) = Pair(question.helpers.size, question.digest)
    val upload = draw(UPLOAD_BYTES)
    val seeds = List(count) { draw(SEED_BYTES) }
    val fixed = FixedPoint(question.bits, question.most)
    val values = question.parts.mapValues { (name, part) ->
        val draws = ByteBuffer.wrap(draw(Math.multiplyExact(4, part.count))).order(ByteOrder.LITTLE_ENDIAN)
        val uniform = DoubleArray(part.count) { (draws.getInt().toLong() and 0xffffffffL) / 4294967296.0 }
        fixed.masked(fixed.encode(numbers.getValue(name), part.clip, uniform), seeds, name)
    }
    val purpose = "shoal/1 seeds\n${jsonText(listOf(id, deviceId, base64(upload)))}".toByteArray()
    val sealed = question.helpers.mapIndexed { number, helper ->
        val others = seeds.filterIndexed { seed, _ -> seed != number || count == 1 }
        keys.getValue(helper).seal(others.reduce(ByteArray::plus), purpose, ephemeral())
    }
    return SecretAnswer(id, deviceId, upload, question.bits, values, sealed)
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
