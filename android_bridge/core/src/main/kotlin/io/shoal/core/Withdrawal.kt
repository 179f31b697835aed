package io.shoal.core

import io.shoal.core.mqtt.MqttLink
import io.shoal.core.wire.Acknowledge
import io.shoal.core.wire.DeviceStatus
import io.shoal.core.wire.PublicKey
import io.shoal.core.wire.Topics
import io.shoal.core.wire.digest
import io.shoal.core.wire.encode
import java.security.SecureRandom

/** A device's owner agrees no longer (`wire/SPEC.md`, 'Withdrawal'): the aggregator is told, and says that it knows. */
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
     * Whether the aggregator confirmed it within [answerMs]. What was said stays at the broker either way: an aggregator that is away learns
     * of it when it comes back.
     *
     * @throws LinkException no broker within [connectMs], or it refuses this device
     */
    public fun tell(connectMs: Long = 30_000, answerMs: Long = 30_000, stop: () -> Boolean = { false }): Boolean {
        val status = topics.device(deviceId, "status")
        val said = encode(DeviceStatus(deviceId, false, random()))
        // The will is the same: a connection that breaks must not say something else in its place.
        return MqttLink.connect(broker, "$fleet.$deviceId", Will(status, said), connectMs, stop, log, topics::limit, hurry = stop).use { link ->
            link.subscribe(listOf(topics.device(deviceId, "reply"), topics.aggregator))
            link.publish(status, said, retain = true)
            confirmed(link, digest(said), answerMs, stop)
        }
    }

    private fun confirmed(link: Link, said: String, answerMs: Long, stop: () -> Boolean): Boolean {
        val endNs = System.nanoTime() + answerMs * 1_000_000
        while (System.nanoTime() < endNs && !stop()) {
            val came = (link.receive(POLL_MS) as? Delivery)?.let(admission::admit)
            if (came is Admitted.OfStatus) time.heard(came.status.epoch, came.status.atS)
            val reply = (came as? Admitted.OfReply)?.reply
            if (reply is Acknowledge && reply.update == said) return true
        }
        return false
    }

    private fun random(): String = ByteArray(16).also(SecureRandom()::nextBytes).joinToString("") { "%02x".format(java.util.Locale.ROOT, it) }

    private companion object {
        const val POLL_MS = 250L
    }
}
