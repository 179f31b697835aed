package io.shoal.core

import io.shoal.core.mqtt.MqttLink
import io.shoal.core.wire.Acknowledge
import io.shoal.core.wire.DeviceStatus
import io.shoal.core.wire.PublicKey
import io.shoal.core.wire.Topics
import io.shoal.core.wire.digest
import io.shoal.core.wire.encode
import java.security.SecureRandom

/**
 * Withdrawal of a device by its owner (`wire/SPEC.md`, 'Withdrawal'): the device tells the
 * aggregator, which confirms it.
 */
@InternalShoalApi
public class Withdrawal(
    private val deviceId: String,
    private val fleet: String,
    private val broker: BrokerAddress,
    trusted: List<PublicKey>,
    private val clock: Clock = Clock.SYSTEM,
    private val log: Log = Log.SILENT,
) {
    private val topics = Topics(fleet)
    private val time = AggregatorTime(clock)
    private val admission = Admission(Identity(deviceId, fleet, trusted), topics, time, log)

    /**
     * Tell the aggregator, and return true if it confirmed the withdrawal within [answerMs]. The
     * message stays at the broker in any case: an aggregator that is away receives it later.
     *
     * @throws LinkException no broker within [connectMs], or it refuses this device
     */
    public fun tell(connectMs: Long = 30_000, answerMs: Long = 30_000, stop: () -> Boolean = { false }): Boolean {
        val status = topics.device(deviceId, "status")
        val message = encode(DeviceStatus(deviceId, false, random()))
        // The will is the same message: a broken connection must not replace it by another one.
        return MqttLink.connect(broker, "$fleet.$deviceId", Will(status, message), connectMs, stop, log, topics::limit, hurry = stop).use { link ->
            link.subscribe(listOf(topics.device(deviceId, "reply"), topics.aggregator))
            link.publish(status, message, retain = true)
            isConfirmed(link, digest(message), answerMs, stop)
        }
    }

    private fun isConfirmed(link: Link, digest: String, answerMs: Long, stop: () -> Boolean): Boolean {
        val endNs = System.nanoTime() + answerMs * 1_000_000
        while (System.nanoTime() < endNs && !stop()) {
            val message = (link.receive(POLL_MS) as? Delivery)?.let(admission::admit)
            if (message is Admitted.OfStatus) time.hear(message.status.epoch, message.status.atS)
            val reply = (message as? Admitted.OfReply)?.reply
            if (reply is Acknowledge && reply.update == digest) return true
        }
        return false
    }

    private fun random(): String = ByteArray(16).also(SecureRandom()::nextBytes).joinToString("") { "%02x".format(java.util.Locale.ROOT, it) }

    private companion object {
        const val POLL_MS = 250L
    }
}
