package io.shoal.core.wire

import io.shoal.core.MalformedException
import java.util.Base64

/** Largest number of helpers of a question. */
internal const val MOST_HELPERS = 4

/** Number of random bytes of the id of an upload. */
internal const val UPLOAD_BYTES = 16

/** Numbers of one tensor: their [count], and the largest absolute value of one, [clip]. */
internal data class SumPart(val count: Int, val clip: Double)

/**
 * Noise that each device adds to its integers. [norm] is the largest Euclidean norm of its scaled
 * numbers before they are rounded. [deviation] is the standard deviation of the noise on each integer.
 */
internal data class Noise(val norm: Double, val deviation: Double) {
    /** Return the fields of the noise. */
    fun fields(): Map<String, Any?> = linkedMapOf("norm" to norm, "deviation" to deviation)

    internal companion object {
        /** Range of the standard deviation of a device's noise. */
        val DEVIATIONS = 4.0..65536.0

        /** Largest noise, in standard deviations. */
        const val REACH = 10

        /**
         * Return the noise of a JSON object.
         *
         * @throws MalformedException a field is missing or wrong, or the sum of [most] devices of [bits] bits would wrap
         */
        fun of(fields: Fields, bits: Int, most: Long): Noise {
            val noise = Noise(
                fields.double("norm", expected = "above 0") { it > 0 },
                fields.double("deviation", expected = "${DEVIATIONS.start} to ${DEVIATIONS.endInclusive}") { it in DEVIATIONS },
            )
            val reach = most * noise.norm + REACH * noise.deviation * Math.sqrt(most.toDouble())
            if (bits < 32 || reach >= 1L shl 31) {
                throw MalformedException("question.noise: the sum must have 32 bits and be below 2^31, got $bits bits and $reach")
            }
            return noise
        }
    }
}

/**
 * Question of an aggregator, which asks every device of a cohort for the same numbers (`wire/SPEC.md`,
 * 'Secret sums'). [about] is the digest of what is computed, [most] the largest number of devices of
 * the sum, [minSum] the smallest, and [helpers] the digests of the helpers' keys. [group] tells
 * questions to several groups apart. With [noise], the clip of each part is the largest norm of all
 * parts together.
 */
internal data class SumQuestion(
    val about: String,
    val parts: Map<String, SumPart>,
    val bits: Int,
    val most: Long,
    val minSum: Long,
    val helpers: List<String>,
    val closesAtS: Double,
    val group: String = "",
    val noise: Noise? = null,
) {
    /** Identity of the question: SHA-256 of its bytes. */
    val digest: String get() = digest(jsonText(fieldsOf(this)).toByteArray())

    internal companion object {
        const val TYPE = "sum-question"
        const val SCHEME = "masks"

        /** Smallest bound of an integer before it is summed; numbers would be too coarse below. */
        private const val LEAST_BOUND = 8

        /**
         * Return the question of a JSON object.
         *
         * @throws MalformedException a field is missing or wrong
         */
        fun of(fields: Fields): SumQuestion {
            fields.oneOf("type", listOf(TYPE), TYPE)
            fields.oneOf("scheme", listOf(SCHEME), SCHEME)
            val parts = fields.map("parts") { value, path ->
                Fields(value, path).run { SumPart(int("count", 1L..Int.MAX_VALUE).toInt(), double("clip", expected = "above 0") { it > 0 }) }
            }
            val bits = if (fields.int("bits", 16L..32L) == 16L) 16 else fields.int("bits", 32L..32L).toInt()
            val helpers = fields.digestsOrNull("helpers", MOST_HELPERS).orEmpty()
            if (helpers.isEmpty()) throw MalformedException("question.helpers: expected 1 to $MOST_HELPERS SHA-256")
            val most = fields.int("most", 1L..((1L shl (bits - 1)) - 1) / LEAST_BOUND)
            return SumQuestion(
                fields.digest("about"),
                parts,
                bits,
                most,
                fields.positive("min_sum"),
                helpers,
                fields.double("closes_at_s"),
                if (fields.string("group", "").isEmpty()) "" else fields.name("group"),
                fields.objectOrNull("noise") { Noise.of(it, bits, most) },
            )
        }
    }
}

/** Return the fields of a question. */
internal fun fieldsOf(question: SumQuestion): Map<String, Any?> = linkedMapOf(
    "type" to SumQuestion.TYPE,
    "about" to question.about,
    "parts" to question.parts.mapValues { (_, part) -> linkedMapOf("count" to part.count, "clip" to part.clip) },
    "bits" to question.bits,
    "most" to question.most,
    "min_sum" to question.minSum,
    "helpers" to question.helpers,
    "closes_at_s" to question.closesAtS,
    "scheme" to SumQuestion.SCHEME,
    "group" to question.group,
    "noise" to question.noise?.fields(),
)

/**
 * Share: from a device to helpers, through the aggregator. It has the [sealed] seeds of the masks, and
 * no value. [upload] and [sealed] are base64, and [values] is the digest of the masked values, so that
 * the device signs this upload and no other.
 */
internal data class Share(val question: String, val deviceId: String, val upload: String, val values: String, val sealed: List<String>) {
    /** Message for the helpers. */
    val text: String get() = jsonText(fieldsOf(this))

    internal companion object {
        const val TYPE = "share"

        /**
         * Return the share of a JSON object.
         *
         * @throws MalformedException a field is missing or wrong
         */
        fun of(fields: Fields): Share {
            fields.oneOf("type", listOf(TYPE), TYPE)
            val upload = fields.string("upload")
            if (bytesOf(upload, "share.upload").size != UPLOAD_BYTES) throw MalformedException("share.upload: expected $UPLOAD_BYTES bytes")
            val sealed = fields.strings("sealed").onEach { bytesOf(it, "share.sealed") }
            return Share(fields.digest("question"), fields.name("device_id"), upload, fields.digest("values"), sealed)
        }

        private fun bytesOf(base64: String, path: String): ByteArray = try {
            Base64.getDecoder().decode(base64)
        } catch (_: IllegalArgumentException) {
            throw MalformedException("$path: expected base64")
        }
    }
}

/** Return the fields of a share. */
internal fun fieldsOf(share: Share): Map<String, Any?> = linkedMapOf(
    "type" to Share.TYPE,
    "question" to share.question,
    "device_id" to share.deviceId,
    "upload" to share.upload,
    "values" to share.values,
    "sealed" to share.sealed,
)

/** A device's share and its [signature], beside the tensors `masked/PART` of an update. */
internal data class SignedShare(val share: Share, val signature: String)

/** Return the fields of a signed share. */
internal fun fieldsOf(signed: SignedShare): Map<String, Any?> = linkedMapOf("share" to fieldsOf(signed.share), "signature" to signed.signature)

/**
 * Return the signed share of a JSON object.
 *
 * @throws MalformedException a field is missing or wrong
 */
internal fun signedShareOf(fields: Fields): SignedShare = SignedShare(Share.of(fields.obj("share")), fields.text("signature"))
