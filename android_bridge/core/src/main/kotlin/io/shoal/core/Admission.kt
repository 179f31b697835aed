package io.shoal.core

import io.shoal.core.wire.AggregatorStatus
import io.shoal.core.wire.Fields
import io.shoal.core.wire.PLAN_BYTES
import io.shoal.core.wire.Pieces
import io.shoal.core.wire.Plan
import io.shoal.core.wire.PlanHead
import io.shoal.core.wire.Release
import io.shoal.core.wire.Reply
import io.shoal.core.wire.Topics
import io.shoal.core.wire.Verifier
import io.shoal.core.wire.Want
import io.shoal.core.wire.checkPieces
import io.shoal.core.wire.decode
import io.shoal.core.wire.parseJson
import io.shoal.core.wire.planHeadOf

/** Message from the broker that was parsed and verified. */
internal sealed interface Admitted {
    /** Plan whose contents this client does not know, and the reason. */
    class OfUnreadPlan(val plan: PlanHead, val problem: String) : Admitted

    /** [text] is the plan as it came, with its signatures. */
    class OfPlan(val plan: Plan, val text: String) : Admitted

    class OfReply(val reply: Reply) : Admitted

    class OfRelease(val release: Release) : Admitted

    class OfWant(val want: Want) : Admitted

    class OfStatus(val status: AggregatorStatus) : Admitted

    class OfBlob(val digest: String, val payload: ByteArray) : Admitted
}

/**
 * Reader of the messages to one device, and the first ring around faults: a message that cannot be
 * parsed, is not trusted or is for another device is ignored, whatever error reading it raised.
 */
internal class Admission(private val self: Identity, private val topics: Topics, private val time: AggregatorTime, private val log: Log) {
    private val verifier = Verifier(self.fleet, self.trusted)

    /** Return the verified message, or null if it is to be ignored. */
    fun admit(event: Delivery): Admitted? = try {
        val address = topics.parse(event.topic)
        val mine = address.deviceId == self.deviceId
        when {
            address.kind == "plan" && mine -> planIn(event.payload)
            address.kind == "reply" && mine -> Admitted.OfReply(replyIn(event.payload))
            address.kind == "release" && mine -> Admitted.OfRelease(releaseIn(event.payload))
            address.kind == "want" && mine -> Admitted.OfWant(wantIn(event.payload))
            address.kind == "blob" -> Admitted.OfBlob(address.digest, event.payload)
            address.kind == "aggregator" -> Admitted.OfStatus(verifier.open(event.payload, time.latestS()))
            else -> null
        }
    } catch (error: Throwable) {
        log.write(Log.Level.WARNING, "Message ignored: device=${self.deviceId} topic=${printable(event.topic.take(200))}: ${describe(error)}")
        null
    }

    /**
     * Return the list of pieces that came in place of a large blob.
     *
     * @throws LimitExceededException the blob is larger than [mostBytes]
     * @throws WireException the message is to be ignored
     */
    fun piecesIn(payload: ByteArray, mostBytes: Int): Pieces = checkPieces(verifier.open(payload, time.latestS()), mostBytes)

    private fun wantIn(payload: ByteArray): Want {
        val want = verifier.open<Want>(payload, time.latestS())
        if (want.deviceId != self.deviceId) throw UntrustedException("want for ${want.deviceId}, not for ${self.deviceId}")
        return want
    }

    private fun planIn(payload: ByteArray): Admitted {
        if (payload.size > PLAN_BYTES) throw LimitExceededException("plan of ${payload.size} bytes: at most $PLAN_BYTES are accepted")
        val text = verifier.checked(payload, time.latestS())
        val plan = try {
            decode<Plan>(text)
        } catch (error: MalformedException) {
            val head = planHeadOf(Fields(parseJson(text), "plan"))
            if (head.deviceId != self.deviceId) throw UntrustedException("plan for ${head.deviceId}, not for ${self.deviceId}")
            val client = "${BuildVersion.CLIENT}, which speaks protocol ${Outbox.PROTOCOL_VERSION}"
            return Admitted.OfUnreadPlan(head, "the client, $client, cannot read the plan: update the app; ${describe(error)}")
        }
        if (plan.deviceId != self.deviceId) throw UntrustedException("plan for ${plan.deviceId}, not for ${self.deviceId}")
        return Admitted.OfPlan(plan, payload.decodeToString())
    }

    private fun releaseIn(payload: ByteArray): Release {
        val release = verifier.open<Release>(payload, time.latestS())
        if (release.deviceId != self.deviceId) throw UntrustedException("release for ${release.deviceId}, not for ${self.deviceId}")
        return release
    }

    private fun replyIn(payload: ByteArray): Reply {
        val reply = verifier.open<Reply>(payload, time.latestS())
        if (reply.deviceId != self.deviceId) throw UntrustedException("reply for ${reply.deviceId}, not for ${self.deviceId}")
        return reply
    }
}
