package io.shoal.core

import io.shoal.core.wire.CheckIn
import io.shoal.core.wire.Decline
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

/** What a device says to its aggregator (`edge_client/agent/outbox.py`). It publishes on the device's topics, and counts the bytes. */
internal class Outbox(
    private val self: Identity,
    private val topics: Topics,
    private val link: Link,
    private val traffic: Traffic,
    private val around: Surroundings,
) {
    private var nextBeatS = Double.POSITIVE_INFINITY

    /** Whether the broker is there, as far as the device has heard. */
    var connected: Boolean = false

    /** Says that the device is here, if it has not for a while: before the aggregator would wonder. */
    fun beat() {
        if (connected && around.clock.steadySeconds() >= nextBeatS) sayHere()
    }

    /**
     * Says that the device is here, and what it has; [bundle] is the digest of the one that is loaded, or empty, [kept] are the models of which
     * it holds what it has kept.
     */
    fun checkIn(bundle: String, kept: List<String>) {
        val health = (contained { around.health() } as? Contained.Done)?.value ?: Health() // an app's own code is no reason to stay away
        val message = CheckIn(
            deviceId = self.deviceId,
            numTrain = around.windows.numTrain.toLong(),
            numTest = around.windows.numTest.toLong(),
            bundle = bundle,
            client = CLIENT,
            runtime = around.loader.runtime,
            batteryPercent = health.batteryPercent,
            unmetered = health.unmetered,
            policy = self.policy,
            hardware = health.hardware,
            freeBytes = health.freeBytes,
            temperatureC = health.temperatureC,
            charging = health.charging,
            idle = health.idle,
            classes = toldClasses(self.policy ?: Policy(), around.windows.trainY),
            moved = health.moved,
            encodings = listOf(Quantised.INT8),
            numUnlabelled = around.windows.numUnlabelled.toLong(),
            kept = kept,
        )
        say("check-in", message)
        sayHere()
    }

    /** Says which release is in use. */
    fun inUse(message: InUse): Unit = say("in-use", message)

    /** Says that a plan is not carried out. */
    fun decline(plan: Plan, action: Action.Decline) {
        val (reason, detail) = action
        around.log.write(Log.Level.ERROR, "declined round ${plan.round} device=${self.deviceId} reason=${reason.text}: $detail")
        say("decline", Decline(plan.runId, plan.epoch, plan.round, plan.attempt, self.deviceId, reason, detail, action.proof))
    }

    /** Asks the aggregator to publish a blob. */
    fun fetch(digest: String): Unit = say("fetch", Fetch(self.deviceId, digest))

    /** Offers a large update. */
    fun offer(offer: UpdateOffer): Unit = say("offer", offer)

    /** Sends a piece of one. */
    fun piece(piece: Piece, payload: ByteArray): Unit = publish("piece", encodePiece(piece, payload))

    /** Sends a finished update. */
    fun update(payload: ByteArray): Unit = publish("update", payload)

    private fun sayHere() {
        say("status", DeviceStatus(self.deviceId, true), true)
        nextBeatS = around.clock.steadySeconds() + HEARTBEAT_S
    }

    private fun say(kind: String, message: Message, retain: Boolean = false): Unit = publish(kind, encode(message), retain)

    private fun publish(kind: String, payload: ByteArray, retain: Boolean = false) {
        traffic.add(payload.size)
        link.publish(topics.device(self.deviceId, kind), payload, retain)
    }

    companion object {
        /** The version of Shoal that this client is of (`wire/version.py`). */
        const val CLIENT = "shoal 0.1.0"

        /** A connected device says at least every 60 s that it is here. */
        private const val HEARTBEAT_S = 45.0
    }
}
