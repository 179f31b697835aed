package io.shoal.core

import io.shoal.core.wire.CheckIn
import io.shoal.core.wire.Decline
import io.shoal.core.wire.DeclineReason
import io.shoal.core.wire.DeviceStatus
import io.shoal.core.wire.ErrorReport
import io.shoal.core.wire.Fetch
import io.shoal.core.wire.InUse
import io.shoal.core.wire.Message
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.Piece
import io.shoal.core.wire.Plan
import io.shoal.core.wire.PlanHead
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
    private val policy = self.policy ?: Policy()

    /** True if the link is up. */
    var connected: Boolean = false

    /** Send a heartbeat if one is due. */
    fun beat() {
        if (connected && environment.clock.steadySeconds() >= nextBeatS) sendHeartbeat()
    }

    /**
     * Check in, and send a heartbeat. [bundle] is the digest of the loaded bundle, or empty. [personalModels]
     * are the digests of the models that have a personal model. [start] is the start of the client.
     */
    fun checkIn(bundle: String, personalModels: List<String>, start: Start) {
        val health = environment.state()
        val message = CheckIn(
            deviceId = self.deviceId,
            numTrain = environment.windows.numTrain.toLong(),
            numTest = environment.windows.numTest.toLong(),
            bundle = bundle,
            client = BuildVersion.CLIENT,
            runtime = environment.loader.runtime,
            batteryPercent = health.batteryPercent,
            unmetered = health.unmetered,
            policy = self.policy,
            hardware = health.hardware,
            freeBytes = health.freeBytes,
            temperatureC = health.temperatureC,
            charging = health.charging,
            idle = health.idle,
            classes = reportedClasses(policy, environment.windows.trainY),
            moved = health.moved,
            encodings = listOf(Quantised.INT8),
            numUnlabelled = environment.windows.numUnlabelled.toLong(),
            personalModels = personalModels,
            protocol = PROTOCOL_VERSION,
            app = health.app,
            start = start.number,
            instance = start.instance,
        )
        send("check-in", permittedFacts(policy, message))
        sendHeartbeat()
    }

    /** Report which release is in use. */
    fun inUse(message: InUse) {
        val isWithheld = message.problem.isNotEmpty() && !policy.tellsErrors
        val permitted = if (isWithheld) message.copy(problem = ErrorReports.WITHHELD) else message
        send("in-use", if (policy.minSum == null) permitted else permitted.copy(evaluated = Metrics(), before = Metrics()))
    }

    /** Report the last error. */
    fun error(report: ErrorReport): Unit = send("error", report)

    /** Tell the aggregator that a plan is not carried out. */
    fun decline(plan: Plan, action: Action.Decline): Unit =
        decline(PlanHead(plan.deviceId, plan.runId, plan.epoch, plan.round, plan.attempt), action)

    /** Tell the aggregator that the plan with this identity is not carried out. */
    fun decline(plan: PlanHead, action: Action.Decline) {
        val (reason, detail) = action
        val level = if (reason == DeclineReason.POLICY) Log.Level.INFO else Log.Level.ERROR
        environment.log.write(level, "Plan declined: round=${plan.round} device=${self.deviceId} reason=${reason.text}: $detail")
        val permitted = ErrorReports.permittedDetail(policy.tellsErrors, reason, detail)
        send("decline", Decline(plan.runId, plan.epoch, plan.round, plan.attempt, self.deviceId, reason, permitted, action.proof))
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
        try {
            link.publish(topics.device(self.deviceId, kind), payload, retain)
        } catch (error: LimitExceededException) {
            environment.log.write(Log.Level.ERROR, "Message not sent: device=${self.deviceId} kind=$kind: ${error.message}")
        }
    }

    companion object {
        /** Version of the protocol that this client speaks (`wire/messages.py`). */
        const val PROTOCOL_VERSION = "1.1"

        /** Interval of heartbeats; a device must send one at least every 60 s. */
        private const val HEARTBEAT_S = 45.0
    }
}
