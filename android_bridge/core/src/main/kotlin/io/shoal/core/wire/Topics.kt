package io.shoal.core.wire

import io.shoal.core.ConfigException
import io.shoal.core.UnknownTopicException

/**
 * Meaning of a topic: its [kind], and its device id (device topics) or blob digest (blob topics).
 */
internal data class Address(val kind: String, val deviceId: String = "", val digest: String = "")

/**
 * Topics of one fleet (`wire/SPEC.md`, 'Topics').
 *
 * @throws ConfigException the fleet's name is not 1 to 64 characters of `A-Z a-z 0-9 . _ -`
 */
internal class Topics(fleet: String) {
    private val root = "shoal/1/${checked(fleet, "fleet name")}"

    /** Topic of the aggregator's retained status. */
    val aggregator: String get() = "$root/aggregator"

    /**
     * Return a device's own topic: check-in, update, offer, piece, decline, fetch, status,
     * in-use and error, which it writes, and plan, reply, release and want, which it reads.
     *
     * @throws ConfigException the device's id cannot be part of a topic
     */
    fun device(deviceId: String, kind: String): String = "$root/device/${checked(deviceId, "device id")}/$kind"

    /**
     * Return the topic on which the bytes with this SHA-256 are published, retained, while devices
     * need them.
     */
    fun blob(digest: String): String = "$root/blob/$digest"

    /**
     * Return the maximum size of a publication on a topic. Topics that this fleet's devices do not
     * read have a small one.
     */
    fun limit(topic: String): Int = if (topic.startsWith("$root/blob/")) Limits.PROTOCOL.totalBytes else 2 * MESSAGE_BYTES

    /**
     * Parse a topic.
     *
     * @throws UnknownTopicException it is not one of this fleet
     */
    fun parse(topic: String): Address {
        val parts = if (topic.startsWith("$root/")) topic.substring(root.length + 1).split('/') else emptyList()
        return when {
            parts == listOf("aggregator") -> Address("aggregator")
            parts.size == 2 && parts[0] == "blob" && isDigest(parts[1]) -> Address("blob", digest = parts[1])
            parts.size == 3 && parts[0] == "device" && parts[2] in KINDS && isName(parts[1]) -> Address(parts[2], deviceId = parts[1])
            else -> throw UnknownTopicException("topic '${topic.take(200)}': expected $root/(aggregator | blob/SHA256 | device/ID/KIND)")
        }
    }

    private companion object {
        val KINDS = setOf("check-in", "update", "offer", "piece", "decline", "fetch", "status", "in-use", "error", "plan", "reply", "release", "want")

        fun checked(value: String, what: String): String =
            if (isName(value)) value else throw ConfigException("$what '$value': expected 1 to 64 characters of A-Z a-z 0-9 . _ -")
    }
}
