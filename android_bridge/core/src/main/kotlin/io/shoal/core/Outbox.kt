package io.shoal.core

import io.shoal.core.wire.CheckIn
import io.shoal.core.wire.Decline
import io.shoal.core.wire.DeclineReason
import io.shoal.core.wire.DeviceStatus
import io.shoal.core.wire.Fetch
import io.shoal.core.wire.InUse
import io.shoal.core.wire.Message
import io.shoal.core.wire.Piece
import io.shoal.core.wire.Plan
import io.shoal.core.wire.Policy
import io.shoal.core.wire.Topics
import io.shoal.core.wire.UpdateOffer
import io.shoal.core.wire.encode
import io.shoal.core.wire.encodePiece

/**
 * Messages from a device to its aggregator (`edge_client/agent/outbox.py`). The outbox publishes on
 * the device's topics, and counts the bytes.
 */
internal class Outbox(
    private val self: Identity,
    private val topics: Topics,
    private val link: Link,
    private val traffic: Traffic,
    private val environment: Environment,
) {
    private var nextBeatS = Double.POSITIVE_INFINITY

    /** True if the link is up. */
    var connected: Boolean = false

    /** Send a heartbeat if one is due. */
    fun beat() {
        if (connected && environment.clock.steadySeconds() >= nextBeatS) sendHeartbeat()
    }

    /**
     * Check in, and send a heartbeat. [bundle] is the digest of the loaded bundle, or empty. [personalModels]
     * are the digests of the models that have a personal model.
     */
    fun checkIn(bundle: String, personalModels: List<String>) {
        val health = (contained { environment.health() } as? Contained.Done)?.value ?: Health() // an error in the app's own code must not prevent the check-in
        val message = CheckIn(
            deviceId = self.deviceId,
            numTrain = environment.windows.numTrain.toLong(),
            numTest = environment.windows.numTest.toLong(),
            bundle = bundle,
            client = CLIENT,
            runtime = environment.loader.runtime,
            batteryPercent = health.batteryPercent,
            unmetered = health.unmetered,
            policy = self.policy,
            hardware = health.hardware,
            freeBytes = health.freeBytes,
            temperatureC = health.temperatureC,
            charging = health.charging,
            idle = health.idle,
            classes = reportedClasses(self.policy ?: Policy(), environment.windows.trainY),
            moved = health.moved,
            encodings = listOf(Quantised.INT8),
            numUnlabelled = environment.windows.numUnlabelled.toLong(),
            personalModels = personalModels,
        )
        send("check-in", message)
        sendHeartbeat()
    }

    /** Report which release is in use. */
    fun inUse(message: InUse): Unit = send("in-use", message)

    /** Tell the aggregator that a plan is not carried out. */
    fun decline(plan: Plan, action: Action.Decline) {
        val (reason, detail) = action
        val level = if (reason == DeclineReason.POLICY) Log.Level.INFO else Log.Level.ERROR
        environment.log.write(level, "Plan declined: round=${plan.round} device=${self.deviceId} reason=${reason.text}: $detail")
        send("decline", Decline(plan.runId, plan.epoch, plan.round, plan.attempt, self.deviceId, reason, detail, action.proof))
    }

    /** Ask the aggregator to publish a blob. */
    fun fetch(digest: String): Unit = send("fetch", Fetch(self.deviceId, digest))

    /** Offer a large update. */
    fun offer(offer: UpdateOffer): Unit = send("offer", offer)

    /** Send a piece of a large update. */
    fun piece(piece: Piece, payload: ByteArray): Unit = publish("piece", encodePiece(piece, payload))

    /** Send a finished update. */
    fun update(payload: ByteArray): Unit = publish("update", payload)

    private fun sendHeartbeat() {
        send("status", DeviceStatus(self.deviceId, true, atS = environment.clock.nowSeconds()), true)
        nextBeatS = environment.clock.steadySeconds() + HEARTBEAT_S
    }

    private fun send(kind: String, message: Message, retain: Boolean = false): Unit = publish(kind, encode(message), retain)

    private fun publish(kind: String, payload: ByteArray, retain: Boolean = false) {
        traffic.add(payload.size)
        link.publish(topics.device(self.deviceId, kind), payload, retain)
    }

    companion object {
        /** Version of this client (`wire/version.py`). */
        const val CLIENT = "shoal 0.1.0"

        /** Interval of heartbeats; a device must send one at least every 60 s. */
        private const val HEARTBEAT_S = 45.0
    }
}
