package io.shoal.core

import io.shoal.core.secret.AnswerStore
import io.shoal.core.secret.SurveyStore
import io.shoal.core.secret.Masking
import io.shoal.core.wire.AggregatorStatus
import io.shoal.core.wire.Busy
import io.shoal.core.wire.DeclineReason
import io.shoal.core.wire.ErrorReport
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
 * Client of one device: it checks in, takes a plan, fetches its blobs, carries it out, and keeps
 * the update until it is answered (`wire/SPEC.md`). [handle] processes one event and [tick] sends
 * what is due; neither waits or works. [work] does the pending work, however long it takes, and
 * calls [stop] before every batch.
 *
 * Only a broken disk or a defect raises an error here. A message that cannot be read or trusted is
 * ignored, and a fault in a plan declines that plan.
 */
internal class Agent(self: Identity, private val link: Link, private val environment: Environment, private val stop: () -> Boolean) : Closeable {
    private val deviceId = self.deviceId
    private val start = Start.begin(environment.storage, environment.log)
    private val topics = Topics(self.fleet)
    private val storage = environment.storage
    private val clock = environment.clock
    private val log = environment.log
    private val policy = self.policy ?: Policy()
    private val time = AggregatorTime(clock)
    private val admission = Admission(self, topics, time, log)
    private val loaded = LoadedBundle(storage, environment.loader, environment.windows, self.trusted, environment.noise)
    private val checkpoints = Checkpoints(deviceId, storage, environment.loader.runtime, clock, log, environment.pace, ::progressed)
    private val masking = self.secret?.let { secret -> self.key?.let { Masking(secret, it, AnswerStore(storage), SurveyStore(storage)) } }
    private val planWork = PlanWork(deviceId, environment.windows, policy, loaded, checkpoints, environment.mostBytes, masking, time::forEpoch)
    private val personalModels = PersonalModels(storage)
    private val releases = Releases(deviceId, storage, loaded, personalModels, policy, Trial(environment.windows, policy), log, time::latestS, ::noteError)
    private val traffic = Traffic(storage, clock)
    private val progress = environment.progress
    private val outbox = Outbox(self, topics, link, traffic, environment)
    private val downloads =
        Downloads(topics, link, storage, log, { admission.piecesIn(it, environment.mostBytes) }, environment.mostBytes, outbox::fetch)
    private val sending = Sending(deviceId, storage, outbox, { link.limit }, ::permits)
    private val retry = Retry(clock)
    private var readyAtS = Double.POSITIVE_INFINITY
    private var bootId = ""
    private var bytesReceived = 0L

    /** True if the limit of bytes a day does not permit to send the pending update now. */
    private var waitsForQuota = false

    /** True if the report of the last error is to be sent, at [errorAtS] at the earliest. */
    private var errorDue = false
    private var errorAtS = Double.NEGATIVE_INFINITY

    var session: Session = releases.recovered(storage.session())
        private set

    /** True if the service works with another device of this identity: this client has to end. */
    var isSecond: Boolean = false
        private set

    /** True if a plan is in work, or an answer or the model of an offer may still come. */
    val waiting: Boolean
        get() = when (session.stage) {
            Stage.WORKING -> true
            Stage.PENDING -> !waitsForQuota || offerExpected
            Stage.DECLINED, Stage.ANSWERED -> offerExpected
        }

    private val offerExpected: Boolean get() = downloads.expected || releases.ready(session)

    /** True if [work] would begin something. */
    val hasWork: Boolean
        get() = !isSecond && clock.steadySeconds() >= readyAtS && (planReady != null || releases.ready(session) || releases.comparing)

    /**
     * Plan to carry out, if all its blobs are here. An offer or the model in use may lack theirs
     * forever.
     */
    private val planReady: Plan?
        get() = session.plan?.takeIf { session.stage == Stage.WORKING && downloads.has(PlanWork.blobsOf(it)) }

    init {
        if (session.stage != Stage.WORKING) forgetCheckpoint()
        noteEnd()
        link.subscribe(listOf("plan", "reply", "release", "want").map { topics.device(deviceId, it) } + topics.aggregator)
    }

    /** Process one event. */
    fun handle(event: LinkEvent) {
        when (event) {
            is LinkUp -> {
                log.write(Log.Level.INFO, "Connected: device=$deviceId")
                outbox.connected = true
                readyAtS = clock.steadySeconds() + STATUS_WAIT_S
                checkIn()
                resume()
            }
            is LinkDown -> {
                outbox.connected = false
                log.write(Log.Level.WARNING, "Connection lost, trying again: device=$deviceId reason=${event.reason}")
            }
            is Delivery -> {
                bytesReceived += event.payload.size
                traffic.add(event.payload.size)
                when (val message = admission.admit(event)) {
                    is Admitted.OfPlan -> onPlan(message.plan, message.text)
                    is Admitted.OfUnreadPlan -> outbox.decline(message.plan, Action.Decline(DeclineReason.OUTDATED, message.problem))
                    is Admitted.OfReply -> onReply(message.reply)
                    is Admitted.OfRelease -> onRelease(message.release)
                    is Admitted.OfWant -> if (sending.onWant(message.want, session)) retry.begin()
                    is Admitted.OfStatus -> onStatus(message.status)
                    is Admitted.OfBlob -> onBlob(message.digest, message.payload)
                    null -> {}
                }
            }
        }
    }

    /**
     * Repeat unanswered messages, send the heartbeat, and decline a plan whose deadline passed
     * before its blobs came.
     */
    fun tick() {
        beat()
        val plan = session.plan
        if (plan != null && session.stage == Stage.WORKING) {
            Rounds.expired(session, plan, time.forEpoch(plan.epoch))?.let { (changed, action) ->
                save(changed)
                if (action is Action.Decline) decline(plan, action)
            }
        }
        if (retry.isDue && outbox.connected) { // without a connection, every repetition would be queued in the link
            retry.tried()
            downloads.ask(again = true)
            sendUpdate(again = true)
            rest()
        }
    }

    /**
     * Carry out the accepted plan, or try the offered model, once all blobs are here; if there is
     * neither, compare the model in use with the one before.
     *
     * @throws StoppedException the client is stopping
     */
    fun work() {
        if (!hasWork) return
        val plan = planReady
        try {
            if (plan != null) carryOut(plan) else if (releases.ready(session)) tryOffer() else compare()
        } catch (missing: MissingBlobException) {
            log.write(Log.Level.WARNING, "Damaged blob fetched again: device=$deviceId blob=${missing.digest}")
            prepare()
        }
    }

    /** Release the graphs. */
    override fun close() {
        traffic.save()
        loaded.close()
    }

    private fun onPlan(plan: Plan, text: String) {
        val (changed, action) = Rounds.onPlan(session, plan, text, time.forEpoch(plan.epoch))
        save(changed)
        when (action) {
            is Action.Send -> sendUpdate()
            is Action.Decline -> decline(plan, action)
            is Action.Work -> {
                storage.dropUpdate()
                val check = contained { planWork.checkWithoutBundle(plan) }
                if (check is Contained.Failed) giveUp(plan, check) else prepare()
            }
            else -> {}
        }
    }

    private fun onReply(reply: Reply) {
        if (reply is Refuse && start.isMeantBy(reply)) return endAsSecond()
        if (reply is Refuse) {
            val refusal = "Message refused by the service: device=$deviceId about=${printable(reply.about)} reason=${reply.reason}"
            log.write(Log.Level.WARNING, "$refusal: ${printable(reply.detail)}")
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

    private fun endAsSecond() {
        isSecond = true
        try {
            storage.saveStart(start.copy(refused = true))
        } catch (error: IOException) { // the next start is refused anew
            log.write(Log.Level.WARNING, "Refusal of the device not stored: device=$deviceId: ${describe(error)}")
        }
    }

    private fun onRelease(release: Release) {
        save(Offers.onRelease(session, release))
        prepare()
    }

    private fun onBlob(name: String, payload: ByteArray) {
        try {
            if (downloads.onBlob(name, payload)) retry.begin() // blobs are coming: nothing has to be asked for again now
        } catch (error: IOException) { // the disk is full, for instance
            val plan = session.plan?.takeIf { session.stage == Stage.WORKING && name in PlanWork.blobsOf(it) } ?: throw error
            giveUp(plan, Contained.Failed(reasonOf(error), describe(error), error))
        }
        rest()
        overTraffic()
    }

    private fun onStatus(status: AggregatorStatus) {
        if (!time.hear(status.epoch, status.atS)) return
        readyAtS = minOf(readyAtS, clock.steadySeconds())
        if (status.online && status.bootId != bootId) {
            bootId = status.bootId
            checkIn()
        }
    }

    private fun checkIn() {
        outbox.checkIn(loaded.digest, personalModels.models(session), start)
        outbox.inUse(releases.report(session))
        errorDue = session.error != null
        sendUpdate()
        downloads.ask()
    }

    /**
     * Resume a plan that a restart interrupted. An update that was finished before the restart is
     * sent.
     */
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

    /** Fetch the missing blobs of the plan, the model in use and the offered model. */
    private fun prepare() {
        if (overTraffic()) return
        val plan = session.plan?.takeIf { session.stage == Stage.WORKING }
        val needed = plan?.let(PlanWork::blobsOf).orEmpty()
        if (downloads.want(needed + releases.blobs(session))) retry.begin()
    }

    /**
     * Return true if the limit of bytes a day is exceeded. Then nothing is fetched, and a plan in
     * work is declined.
     */
    private fun overTraffic(): Boolean {
        val exceeded = traffic.exceeds(policy.maxBytesADay) ?: return false
        downloads.want(emptySet())
        val plan = session.plan
        if (plan != null && session.stage == Stage.WORKING) giveUp(plan, Contained.Failed(DeclineReason.POLICY, exceeded))
        return true
    }

    private fun carryOut(plan: Plan) {
        if (overTraffic()) return
        val (started, action) = Rounds.expired(session, plan, time.forEpoch(plan.epoch)) ?: Rounds.onStart(session, plan)
        save(started)
        if (action is Action.Decline) return decline(plan, action)
        storage.keepBlobs(PlanWork.blobsOf(plan) + releases.stored(session))
        try {
            val opened = contained { planWork.open(plan, session.versions) }
            if (opened !is Contained.Done) return giveUp(plan, opened as Contained.Failed)
            save(session.copy(versions = session.versions + (opened.value.name to opened.value.version)))
            val outcome = contained {
                planWork.carryOut(plan, storage.private(plan.runId, plan.round), bytesReceived, ::onStep, ::between)
            }
            if (outcome !is Contained.Done) return giveUp(plan, outcome as Contained.Failed)
            finish(plan, outcome.value)
        } catch (stopped: StoppedException) {
            save(Rounds.onStopped(session))
            throw stopped
        } catch (missing: MissingBlobException) {
            save(Rounds.onStopped(session)) // the client did not end, so this does not count as a try
            throw missing
        }
    }

    /** Store the update, and then send it, if the limit of bytes a day permits it. */
    private fun finish(plan: Plan, finished: FinishedPlan) {
        traffic.exceeds(policy.maxBytesADay, finished.payload.size)?.let {
            return giveUp(plan, Contained.Failed(DeclineReason.POLICY, it))
        }
        try {
            finished.storeAnswer()
            save(personalModels.put(session, plan, finished))
            val private = finished.private.filterKeys { Names.roleOf(it) != Names.PERSONAL }
            try {
                storage.putUpdate(plan.runId, plan.round, finished.payload, private)
            } catch (_: IOException) {
                storage.dropCheckpoint() // to free its space
                storage.putUpdate(plan.runId, plan.round, finished.payload, private)
            }
        } catch (error: IOException) {
            return giveUp(plan, Contained.Failed(DeclineReason.FAILED, "the update cannot be stored; free some space: ${describe(error)}", error))
        }
        save(Rounds.onExecuted(session, plan, digest(finished.payload)))
        log.write(Log.Level.INFO, "Plan carried out: device=$deviceId round=${plan.round} steps=${finished.numSteps}")
        bytesReceived = 0
        progress(Progress.Uploading)
        retry.begin()
        sendUpdate()
    }

    private fun onStep(step: Long, of: Long) = progress(Progress.Training(step, of))

    /**
     * Store the session after a checkpoint of the plan was written, at [runs] runs of graphs.
     * [resumed]: true if the work resumes from it now.
     */
    private fun progressed(plan: Plan, runs: Long, resumed: Boolean) =
        save(if (resumed) Rounds.onResumed(session, plan, runs) else Rounds.onProgress(session, plan, runs))

    private fun between() {
        if (stop()) throw StoppedException()
        beat()
    }

    /** Send a heartbeat and the report of the last error, if they are due. */
    private fun beat() {
        outbox.beat()
        val report = session.error ?: return
        if (!errorDue || !outbox.connected || clock.steadySeconds() < errorAtS) return
        errorDue = false
        errorAtS = clock.steadySeconds() + ErrorReports.EVERY_S
        outbox.error(report)
    }

    /** Store the report of an error, and have it sent. */
    private fun noteError(what: String, error: Throwable) =
        noteReport(ErrorReports.of(deviceId, what, error, time.latestS(), environment.state().app))

    /** Report it if the last start of the client ended in the midst of a plan. */
    private fun noteEnd() {
        val plan = session.plan
        if (plan == null || !Rounds.wasKilled(session)) return
        val health = environment.state()
        val report = ErrorReports.ofKilled(deviceId, plan, time.latestS(), health.app, health.lastExit)
        log.write(Log.Level.ERROR, "${report.what}: device=$deviceId ${report.message}")
        save(session.copy(underWay = false))
        noteReport(report)
    }

    private fun noteReport(report: ErrorReport) {
        if (!policy.tellsErrors) return
        errorDue = true
        try {
            save(session.copy(error = report))
        } catch (full: IOException) { // the report goes out all the same; a restart forgets it
            session = session.copy(error = report)
        }
    }

    private fun tryOffer() {
        if (!releases.ready(session)) return
        save(Offers.onTrying(session))
        releases.take(session, ::between, ::save)
        if (outbox.connected) outbox.inUse(releases.report(session)) // else after the next check-in
    }

    private fun compare() {
        if (releases.compare(::between) && outbox.connected) outbox.inUse(releases.report(session))
    }

    /** Decline the plan, and release its graphs, in case they were the cause. */
    private fun giveUp(plan: Plan, failed: Contained.Failed) {
        contained { loaded.close() }
        if (failed.error != null) noteError("Plan failed", failed.error)
        progress(Progress.Waiting)
        val (changed, action) = Rounds.onDeclined(session, plan, failed.reason, failed.detail)
        save(changed)
        if (action is Action.Decline) decline(plan, action)
    }

    private fun decline(plan: Plan, action: Action.Decline) {
        outbox.decline(plan, action)
        prepare()
    }

    /**
     * Send the pending update, if the limit of bytes a day permits it. Without a connection, the
     * update waits for the next one.
     */
    private fun sendUpdate(again: Boolean = false) {
        waitsForQuota = false
        if (session.stage != Stage.PENDING || !outbox.connected) return
        val isThere = try {
            sending.begin(session, again)
        } catch (error: LimitExceededException) { // it stays, for a broker that takes larger packets
            log.write(Log.Level.ERROR, "Update not sent: device=$deviceId: ${error.message}")
            true
        }
        if (!isThere) {
            log.write(Log.Level.WARNING, "Finished update is lost, its plan is carried out again: device=$deviceId")
            save(session.copy(stage = Stage.WORKING, update = ""))
            return prepare()
        }
        retry.ensure()
    }

    /** Return true if the limit of bytes a day permits to send so many bytes of the update now. */
    private fun permits(bytes: Int): Boolean {
        val exceeded = traffic.exceeds(policy.maxBytesADay, bytes)
        waitsForQuota = exceeded != null
        if (waitsForQuota) log.write(Log.Level.WARNING, "Update waits: device=$deviceId: $exceeded")
        return !waitsForQuota
    }

    /** Stop the retries if nothing waits for an answer. */
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

    /** Delete the checkpoint: its plan is over, and it holds private data. */
    private fun forgetCheckpoint() {
        try {
            storage.dropCheckpoint()
        } catch (error: IOException) {
            log.write(Log.Level.WARNING, "Checkpoint not deleted: device=$deviceId: ${describe(error)}")
        }
    }

    private companion object {
        /** Time to wait for the aggregator's status, which has the time, after a new connection. */
        const val STATUS_WAIT_S = 3.0
    }
}
