package io.shoal.core

import io.shoal.core.wire.AggregatorStatus
import io.shoal.core.wire.PLAN_BYTES
import io.shoal.core.wire.Pieces
import io.shoal.core.wire.Plan
import io.shoal.core.wire.Release
import io.shoal.core.wire.Reply
import io.shoal.core.wire.Topics
import io.shoal.core.wire.Verifier
import io.shoal.core.wire.Want
import io.shoal.core.wire.checkPieces

/** A publication that was read and believed. */
internal sealed interface Admitted {
    /** [text]: the plan as it came, with its signatures. */
    class OfPlan(val plan: Plan, val text: String) : Admitted

    class OfReply(val reply: Reply) : Admitted

    class OfRelease(val release: Release) : Admitted

    class OfWant(val want: Want) : Admitted

    class OfStatus(val status: AggregatorStatus) : Admitted

    class OfBlob(val digest: String, val payload: ByteArray) : Admitted
}

/**
 * The first ring around what comes from outside: what cannot be read, is not to be believed, or is for somebody else is ignored, whatever was
 * thrown while it was read.
 */
internal class Admission(private val self: Identity, private val topics: Topics, private val time: AggregatorTime, private val log: Log) {
    private val verifier = Verifier(self.fleet, self.trusted)

    /** What came, or null. */
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
        log.write(Log.Level.WARNING, "ignored device=${self.deviceId} topic=${printable(event.topic.take(200))}: ${describe(error)}")
        null
    }

    /**
     * What came in place of a large blob.
     *
     * @throws LimitExceeded the blob is larger than [mostBytes]
     * @throws WireException it is to be ignored
     */
    fun piecesIn(payload: ByteArray, mostBytes: Int): Pieces = checkPieces(verifier.open(payload, time.latestS()), mostBytes)

    private fun wantIn(payload: ByteArray): Want {
        val want = verifier.open<Want>(payload, time.latestS())
        if (want.deviceId != self.deviceId) throw Untrusted("a want for ${want.deviceId}")
        return want
    }

    private fun planIn(payload: ByteArray): Admitted {
        if (payload.size > PLAN_BYTES) throw LimitExceeded("a signed plan of ${payload.size} bytes: at most $PLAN_BYTES are accepted")
        val plan = verifier.open<Plan>(payload, time.latestS())
        if (plan.deviceId != self.deviceId) throw Untrusted("a plan for ${plan.deviceId}")
        return Admitted.OfPlan(plan, payload.decodeToString())
    }

    private fun releaseIn(payload: ByteArray): Release {
        val release = verifier.open<Release>(payload, time.latestS())
        if (release.deviceId != self.deviceId) throw Untrusted("a release for ${release.deviceId}")
        return release
    }

    private fun replyIn(payload: ByteArray): Reply {
        val reply = verifier.open<Reply>(payload, time.latestS())
        if (reply.deviceId != self.deviceId) throw Untrusted("a reply for ${reply.deviceId}")
        return reply
    }
}
