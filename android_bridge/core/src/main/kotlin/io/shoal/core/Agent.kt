package io.shoal.core

import io.shoal.core.wire.AggregatorStatus
import io.shoal.core.wire.Busy
import io.shoal.core.wire.DeclineReason
import io.shoal.core.wire.Finish
import io.shoal.core.wire.Limits
import io.shoal.core.wire.Names
import io.shoal.core.wire.Plan
import io.shoal.core.wire.Policy
import io.shoal.core.wire.Refuse
import io.shoal.core.wire.Release
import io.shoal.core.wire.Reply
import io.shoal.core.wire.Topics
import io.shoal.core.wire.Update
import io.shoal.core.wire.decodeUpdate
import io.shoal.core.wire.digest
import java.io.Closeable
import java.io.IOException

/**
 * One device's part of the conversation: check in, take a plan, fetch what it needs, carry it out, keep the update until it is answered
 * (`wire/SPEC.md`). [handle] takes one event and [tick] keeps appointments; neither waits nor works. [work] does what there is to do, for as
 * long as it takes; in it [stop] is asked before every batch.
 *
 * Whatever arrives, only a broken disk or a defect throws: what cannot be read or believed is ignored, and what a plan does wrong becomes a
 * decline.
 */
internal class Agent(self: Identity, private val link: Link, around: Surroundings, private val stop: () -> Boolean) : Closeable {
    private val deviceId = self.deviceId
    private val topics = Topics(self.fleet)
    private val storage = around.storage
    private val clock = around.clock
    private val log = around.log
    private val policy = self.policy ?: Policy()
    private val time = AggregatorTime(clock)
    private val admission = Admission(self, topics, time, log)
    private val loaded = LoadedBundle(storage, around.loader, around.windows, self.trusted, around.noise)
    private val checkpoints = Checkpoints(deviceId, storage, around.loader.runtime, clock, log, around.pace, ::progressed)
    private val planWork = PlanWork(deviceId, around.windows, policy, loaded, checkpoints, around.mostBytes)
    private val own = KeptModels(storage)
    private val releases = Releases(deviceId, storage, loaded, own, policy, Trial(around.windows, policy), log)
    private val traffic = Traffic(storage, clock)
    private val progress = around.progress
    private val outbox = Outbox(self, topics, link, traffic, around)
    private val downloads =
        Downloads(topics, link, storage, log, { admission.piecesIn(it, around.mostBytes) }, around.mostBytes, outbox::fetch)
    private val sending = Sending(deviceId, storage, outbox, ::permits)
    private val retry = Retry(clock)
    private var readyAtS = Double.POSITIVE_INFINITY
    private var bootId = ""
    private var bytesReceived = 0L

    /** Whether the day's bytes do not permit sending the pending update now. */
    private var heldBack = false

    var session: Session = releases.recovered(storage.session())
        private set

    /** Whether a plan is in work, or an answer or the model of an offer may still come. */
    val waiting: Boolean
        get() = when (session.stage) {
            Stage.WORKING -> true
            Stage.PENDING -> !heldBack || offerExpected
            Stage.DECLINED, Stage.ANSWERED -> offerExpected
        }

    private val offerExpected: Boolean get() = downloads.expected || releases.ready(session)

    /** Whether [work] would begin something. */
    val hasWork: Boolean
        get() = clock.steadySeconds() >= readyAtS && (planReady != null || releases.ready(session))

    /** The plan that is to be carried out, where all that it needs is here: what an offer or the model in use lacks may never come. */
    private val planReady: Plan?
        get() = session.plan?.takeIf { session.stage == Stage.WORKING && downloads.has(PlanWork.blobsOf(it)) }

    init {
        if (session.stage != Stage.WORKING) forgetCheckpoint()
        link.subscribe(listOf("plan", "reply", "release", "want").map { topics.device(deviceId, it) } + topics.aggregator)
    }

    /** Acts on one event. */
    fun handle(event: LinkEvent) {
        when (event) {
            is LinkUp -> {
                log.write(Log.Level.INFO, "connected device=$deviceId")
                outbox.connected = true
                readyAtS = clock.steadySeconds() + HEAR_S
                checkIn()
                resume()
            }
            is LinkDown -> {
                outbox.connected = false
                log.write(Log.Level.WARNING, "connection lost, trying again device=$deviceId reason=${event.reason}")
            }
            is Delivery -> {
                bytesReceived += event.payload.size
                traffic.add(event.payload.size)
                when (val came = admission.admit(event)) {
                    is Admitted.OfPlan -> onPlan(came.plan, came.text)
                    is Admitted.OfReply -> onReply(came.reply)
                    is Admitted.OfRelease -> onRelease(came.release)
                    is Admitted.OfWant -> if (sending.onWant(came.want, session)) retry.begin()
                    is Admitted.OfStatus -> onStatus(came.status)
                    is Admitted.OfBlob -> onBlob(came.digest, came.payload)
                    null -> {}
                }
            }
        }
    }

    /**
     * Sends or asks again what had no answer for too long, says once a minute that the device is here, and declines a plan whose time is over
     * before all that it needs has come.
     */
    fun tick() {
        outbox.beat()
        val plan = session.plan
        if (plan != null && session.stage == Stage.WORKING) {
            Rounds.expired(session, plan, time.nowS())?.let { (changed, action) ->
                save(changed)
                if (action is Action.Decline) decline(plan, action)
            }
        }
        if (retry.isDue && outbox.connected) { // what is published without a connection would wait in the link, again and again
            retry.tried()
            downloads.ask(again = true)
            sendUpdate(again = true)
            rest()
        }
    }

    /**
     * Carries out the plan that was taken, or tries the model that was offered, once all that they need is here.
     *
     * @throws Stopped it was told to stop
     */
    fun work() {
        if (!hasWork) return
        val plan = planReady
        try {
            if (plan != null) carryOut(plan) else tryOffer()
        } catch (missing: MissingBlob) {
            log.write(Log.Level.WARNING, "fetching again what was damaged device=$deviceId blob=${missing.digest}")
            prepare()
        }
    }

    /** Lets the graphs go. */
    override fun close() {
        traffic.save()
        loaded.close()
    }

    private fun onPlan(plan: Plan, text: String) {
        val (changed, action) = Rounds.onPlan(session, plan, text, time.nowS())
        save(changed)
        when (action) {
            is Action.Send -> sendUpdate()
            is Action.Decline -> decline(plan, action)
            is Action.Work -> {
                storage.dropUpdate()
                val alone = contained { planWork.checkAlone(plan) }
                if (alone is Contained.Failed) giveUp(plan, alone) else prepare()
            }
            else -> {}
        }
    }

    private fun onReply(reply: Reply) {
        if (reply is Refuse) {
            val what = "refused device=$deviceId about=${printable(reply.about)} reason=${reply.reason}"
            log.write(Log.Level.WARNING, "$what: ${printable(reply.detail)}")
            if (reply.reason == "unknown-device") checkIn()
        }
        val (changed, action) = Rounds.onReply(session, reply)
        save(changed)
        when {
            action == Action.Drop -> {
                storage.dropUpdate()
                progress(Progress.Waiting)
                rest()
            }
            reply is Busy && reply.update == session.update && session.stage == Stage.PENDING -> retry.after(reply.retryS)
            reply is Finish -> prepare()
        }
    }

    private fun onRelease(release: Release) {
        save(Offers.onRelease(session, release))
        prepare()
    }

    private fun onBlob(name: String, payload: ByteArray) {
        try {
            if (downloads.onBlob(name, payload)) retry.begin() // something comes: nothing needs to be asked for again
        } catch (error: IOException) { // the disk is full, for instance
            val plan = session.plan?.takeIf { session.stage == Stage.WORKING && name in PlanWork.blobsOf(it) } ?: throw error
            giveUp(plan, Contained.Failed(reasonOf(error), describe(error)))
        }
        rest()
        overTraffic()
    }

    private fun onStatus(status: AggregatorStatus) {
        if (!time.heard(status.epoch, status.atS)) return
        readyAtS = minOf(readyAtS, clock.steadySeconds())
        if (status.online && status.bootId != bootId) {
            bootId = status.bootId
            checkIn()
        }
    }

    private fun checkIn() {
        outbox.checkIn(loaded.digest, own.models(session))
        outbox.inUse(releases.said(session))
        sendUpdate()
        downloads.ask()
    }

    /** Goes on with a plan that a restart interrupted; if its update was finished before the stop, it is not made again. */
    private fun resume() {
        val plan = session.plan
        if (plan != null && session.stage == Stage.WORKING) {
            val payload = storage.update()
            if (payload != null && isUpdateOf(plan, payload)) {
                save(Rounds.onExecuted(session, plan, digest(payload)))
                sendUpdate()
            }
        }
        prepare()
    }

    private fun isUpdateOf(plan: Plan, payload: ByteArray): Boolean {
        val update: Update = (contained { decodeUpdate(payload, Limits.RECEIVED).first } as? Contained.Done)?.value ?: return false
        return update.runId == plan.runId && update.round == plan.round && update.attempt == plan.attempt
    }

    /** Fetches what the plan, the model in use and the one that was offered need and is not here. */
    private fun prepare() {
        if (overTraffic()) return
        val plan = session.plan?.takeIf { session.stage == Stage.WORKING }
        val needed = plan?.let(PlanWork::blobsOf).orEmpty()
        if (downloads.want(needed + releases.blobs(session))) retry.begin()
    }

    /** Whether more bytes came and went than a day may have: then nothing is fetched, and a plan that is being worked on is declined. */
    private fun overTraffic(): Boolean {
        val exceeded = traffic.exceeds(policy.maxBytesADay) ?: return false
        downloads.want(emptySet())
        val plan = session.plan
        if (plan != null && session.stage == Stage.WORKING) giveUp(plan, Contained.Failed(DeclineReason.POLICY, exceeded))
        return true
    }

    private fun carryOut(plan: Plan) {
        if (overTraffic()) return
        val (started, action) = Rounds.expired(session, plan, time.nowS()) ?: Rounds.onStart(session, plan)
        save(started)
        if (action is Action.Decline) return decline(plan, action)
        storage.keepBlobs(PlanWork.blobsOf(plan) + releases.kept(session))
        try {
            val opened = contained { planWork.open(plan, session.versions) }
            if (opened !is Contained.Done) return giveUp(plan, opened as Contained.Failed)
            save(session.copy(versions = session.versions + (opened.value.name to opened.value.version)))
            val done = contained {
                planWork.carryOut(plan, storage.private(plan.runId, plan.round), bytesReceived, ::onStep, ::between)
            }
            if (done !is Contained.Done) return giveUp(plan, done as Contained.Failed)
            finish(plan, done.value)
        } catch (stopped: Stopped) {
            save(Rounds.onStopped(session))
            throw stopped
        } catch (missing: MissingBlob) {
            save(Rounds.onStopped(session)) // the client did not end: it is no try
            throw missing
        }
    }

    /** Stores the update, and then sends it, if the day's bytes permit that. */
    private fun finish(plan: Plan, finished: FinishedPlan) {
        traffic.exceeds(policy.maxBytesADay, finished.payload.size)?.let {
            return giveUp(plan, Contained.Failed(DeclineReason.POLICY, it))
        }
        try {
            save(own.put(session, plan, finished))
            val private = finished.private.filterKeys { Names.roleOf(it) != Names.KEPT }
            try {
                storage.putUpdate(plan.runId, plan.round, finished.payload, private)
            } catch (_: IOException) {
                storage.dropCheckpoint() // so there may be space
                storage.putUpdate(plan.runId, plan.round, finished.payload, private)
            }
        } catch (error: IOException) {
            return giveUp(plan, Contained.Failed(DeclineReason.FAILED, "the update cannot be stored: ${describe(error)}"))
        }
        save(Rounds.onExecuted(session, plan, digest(finished.payload)))
        log.write(Log.Level.INFO, "round done device=$deviceId round=${plan.round} steps=${finished.numSteps}")
        bytesReceived = 0
        progress(Progress.Uploading)
        retry.begin()
        sendUpdate()
    }

    private fun onStep(step: Long, of: Long) = progress(Progress.Training(step, of))

    /** A checkpoint of the plan in work is on the disk, after so many [runs] of a graph; whether work goes on from it now. */
    private fun progressed(plan: Plan, runs: Long, resumed: Boolean) =
        save(if (resumed) Rounds.onResumed(session, plan, runs) else Rounds.onProgress(session, plan, runs))

    private fun between() {
        if (stop()) throw Stopped()
        outbox.beat()
    }

    private fun tryOffer() {
        if (!releases.ready(session)) return
        save(Offers.onTrying(session))
        releases.take(session, ::between, ::save)
        if (outbox.connected) outbox.inUse(releases.said(session)) // else after the next check-in
    }

    /** The plan is not carried out. What it had loaded is let go, in case that is what was wrong. */
    private fun giveUp(plan: Plan, failed: Contained.Failed) {
        contained { loaded.close() }
        progress(Progress.Waiting)
        val (changed, action) = Rounds.onDeclined(session, plan, failed.reason, failed.detail)
        save(changed)
        if (action is Action.Decline) decline(plan, action)
    }

    private fun decline(plan: Plan, action: Action.Decline) {
        outbox.decline(plan, action)
        prepare()
    }

    /** Sends the pending update, if the day's bytes permit that. Without a connection it waits for the next one. */
    private fun sendUpdate(again: Boolean = false) {
        heldBack = false
        if (session.stage != Stage.PENDING || !outbox.connected) return
        if (!sending.begin(session, again)) {
            log.write(Log.Level.WARNING, "the finished update is lost: its plan is carried out again device=$deviceId")
            save(session.copy(stage = Stage.WORKING, update = ""))
            return prepare()
        }
        retry.goOn()
    }

    /** Whether the day's bytes permit so many of the update to go now. */
    private fun permits(bytes: Int): Boolean {
        val exceeded = traffic.exceeds(policy.maxBytesADay, bytes)
        heldBack = exceeded != null
        if (heldBack) log.write(Log.Level.WARNING, "the update waits device=$deviceId: $exceeded")
        return !heldBack
    }

    /** Tries nothing again if nothing waits for an answer. */
    private fun rest() {
        if (!downloads.open && session.stage != Stage.PENDING) retry.end()
    }

    private fun save(changed: Session) {
        if (changed != session) {
            storage.save(changed)
            val still = Rounds.stillWorks(session, changed)
            session = changed
            if (!still) forgetCheckpoint()
        }
    }

    /** It holds what the device alone may have, and the plan that it is of is over. */
    private fun forgetCheckpoint() {
        try {
            storage.dropCheckpoint()
        } catch (error: IOException) {
            log.write(Log.Level.WARNING, "the checkpoint cannot be deleted device=$deviceId: ${describe(error)}")
        }
    }

    private companion object {
        /** A device that has just connected waits so long for the aggregator's status before it starts to work. */
        const val HEAR_S = 3.0
    }
}
