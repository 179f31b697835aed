package io.shoal.core

import io.shoal.core.random.Noise
import io.shoal.core.wire.Acknowledge
import io.shoal.core.wire.AggregatorStatus
import io.shoal.core.wire.CheckIn
import io.shoal.core.wire.Choose
import io.shoal.core.wire.Decline
import io.shoal.core.wire.DeviceStatus
import io.shoal.core.wire.Fetch
import io.shoal.core.wire.Finish
import io.shoal.core.wire.Limits
import io.shoal.core.wire.Message
import io.shoal.core.wire.Plan
import io.shoal.core.wire.PublicKey
import io.shoal.core.wire.Refuse
import io.shoal.core.wire.Reply
import io.shoal.core.wire.Respond
import io.shoal.core.wire.Topics
import io.shoal.core.wire.Update
import io.shoal.core.wire.decode
import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.decodeUpdate
import io.shoal.core.wire.digest
import io.shoal.core.wire.encode
import io.shoal.core.wire.encodeUpdate
import java.io.Closeable

/**
 * One device's part of the conversation: check in, take a plan, fetch what it needs, carry it out, keep the update until it is acknowledged
 * (`edge_client/agent.py`). [handle] takes one event and never waits for the network.
 */
internal class Agent(
    private val deviceId: String,
    private val topics: Topics,
    private val link: Link,
    private val windows: Windows,
    private val storage: Storage,
    private val loader: GraphLoader,
    private val trusted: PublicKey? = null,
    private val health: () -> Health = { Health() },
    private val clock: Clock = Clock.SYSTEM,
    private val log: Log = Log.SILENT,
    private val noise: Noise = Noise.fromEntropy(),
) : Closeable {
    var session: Session = storage.session()
        private set
    private val loaded = LoadedBundle(storage, loader, windows, trusted, noise)
    private val wanted = sortedSetOf<String>()
    private var bootId = ""
    private var bytesReceived = 0L
    private var retryAtS = Double.POSITIVE_INFINITY
    private var pauseS = FIRST_PAUSE_S

    /** Whether a plan, a download or an answer is still to come. */
    val waiting: Boolean get() = wanted.isNotEmpty() || session.pending != null || session.plan != null

    init {
        link.subscribe(listOf(topics.device(deviceId, "plan"), topics.device(deviceId, "reply"), topics.aggregator))
    }

    /** Acts on one event. Whatever arrives, nothing but a broken disk or a defect throws. */
    fun handle(event: LinkEvent) {
        when (event) {
            is LinkUp -> {
                log.write(Log.Level.INFO, "connected device=$deviceId")
                checkIn()
                resume()
            }
            is LinkDown -> log.write(Log.Level.WARNING, "connection lost, trying again device=$deviceId reason=${event.reason}")
            is Delivery -> try {
                onDelivery(event.topic, event.payload)
            } catch (error: WireException) {
                log.write(Log.Level.WARNING, "ignored device=$deviceId topic=${event.topic}: ${error.message}")
            }
        }
    }

    /** Sends or asks again what had no answer for too long. */
    fun tick() {
        if (clock.nowSeconds() >= retryAtS) {
            fetchWanted()
            sendUpdate()
            arm(pauseS * 2)
        }
    }

    /** Lets the graphs go. */
    override fun close(): Unit = loaded.close()

    private fun checkIn() {
        val now = health()
        publish("status", DeviceStatus(deviceId, true), retain = true)
        publish(
            "check-in",
            CheckIn(
                deviceId = deviceId,
                numTrain = windows.numTrain.toLong(),
                numTest = windows.numTest.toLong(),
                bundle = loaded.digest,
                client = "shoal",
                runtime = loader.runtime,
                batteryPercent = now.batteryPercent,
                unmetered = now.unmetered,
            ),
        )
        sendUpdate()
        fetchWanted()
    }

    private fun onDelivery(topic: String, payload: ByteArray) {
        val address = topics.parse(topic)
        bytesReceived += payload.size
        when (address.kind) {
            "plan" -> onPlan(decode(payload))
            "reply" -> onReply(decode(payload))
            "blob" -> if (address.digest in wanted) onBlob(address.digest, payload)
            "aggregator" -> {
                val status = decode<AggregatorStatus>(payload)
                if (status.online && status.bootId != bootId) {
                    bootId = status.bootId
                    checkIn()
                }
            }
        }
    }

    private fun onPlan(plan: Plan) {
        if (plan.deviceId != deviceId) {
            log.write(Log.Level.WARNING, "ignored a plan for ${plan.deviceId} that came to device=$deviceId")
            return
        }
        val (changed, action) = Rounds.onPlan(session, plan)
        save(changed)
        if (action == Action.SEND) sendUpdate()
        if (action == Action.WORK) {
            storage.dropUpdate()
            prepare(plan)
        }
    }

    private fun onReply(reply: Reply) {
        when (reply) {
            is Refuse -> {
                val what = "refused device=$deviceId round=${reply.round} reason=${reply.reason}"
                log.write(Log.Level.WARNING, "$what: ${reply.detail}")
            }
            is Finish -> want(setOf(reply.model))
            is Acknowledge -> {}
        }
        val (changed, action) = Rounds.onReply(session, reply)
        save(changed)
        if (action == Action.DROP) {
            storage.dropUpdate()
            retryAtS = Double.POSITIVE_INFINITY
        }
    }

    private fun onBlob(name: String, payload: ByteArray) {
        if (digest(payload) != name) {
            log.write(Log.Level.WARNING, "ignored a blob whose hash is not its name device=$deviceId blob=$name")
            return
        }
        storage.putBlob(name, payload)
        wanted -= name
        link.unsubscribe(listOf(topics.blob(name)))
        if (wanted.isEmpty()) session.plan?.let(::prepare)
    }

    /** Goes on with a plan that a restart interrupted; if its update was finished before the stop, it is not made again. */
    private fun resume() {
        val plan = session.plan ?: return
        val done = storage.update()?.let { decodeUpdate(it).first }
        if (done != null && done.runId == plan.runId && done.round == plan.round) {
            save(Rounds.onExecuted(session, plan))
            sendUpdate()
        } else {
            prepare(plan)
        }
    }

    /** Fetches what the plan needs and is not here; once all is here, works. */
    private fun prepare(plan: Plan) {
        val needed = buildSet {
            add(plan.bundle)
            add(plan.model)
            plan.verbs.forEach { if (it is Respond) add(it.inputs) else if (it is Choose) addAll(it.models) }
        }
        forget(wanted - needed)
        val missing = needed.filterNot(storage::hasBlob).toSet()
        if (missing.isNotEmpty()) return want(missing)
        storage.keepBlobs(needed)
        try {
            work(plan)
        } catch (error: ShoalException) {
            log.write(Log.Level.ERROR, "cannot carry out round ${plan.round} device=$deviceId: ${error.message}")
            publish("decline", Decline(plan.runId, plan.round, deviceId, shortened(error.message.orEmpty())))
            save(Rounds.onFailed(session, plan))
        }
    }

    private fun work(plan: Plan) {
        val executor = loaded.executor(plan.bundle, session.versions) { manifest ->
            save(session.copy(versions = session.versions + (manifest.name to manifest.version)))
        }
        val startedNs = System.nanoTime()
        val result = executor.execute(plan, loaded.tensors(plan.model), storage.private(plan.runId, plan.round), loaded::tensors)
        val payload = encodeUpdate(updateOf(plan, result, (System.nanoTime() - startedNs) / 1000), result.tensors)
        if (payload.size > Limits.PROTOCOL.totalBytes) {
            throw DataException("an update of ${payload.size} bytes: at most ${Limits.PROTOCOL.totalBytes} can be sent")
        }
        storage.putUpdate(plan.runId, plan.round, payload, result.private)
        save(Rounds.onExecuted(session, plan))
        log.write(Log.Level.INFO, "round done device=$deviceId round=${plan.round} steps=${result.numSteps}")
        bytesReceived = 0
        pauseS = FIRST_PAUSE_S
        sendUpdate()
    }

    private fun updateOf(plan: Plan, result: PlanResult, tookUs: Long) = Update(
        runId = plan.runId,
        round = plan.round,
        deviceId = deviceId,
        model = result.model,
        numTrain = windows.numTrain.toLong(),
        numSteps = result.numSteps,
        evaluated = result.evaluated,
        trained = result.trained,
        bytesReceived = bytesReceived,
        trainS = tookUs / 1e6,
    )

    private fun want(names: Set<String>) {
        val new = names.filterNot(storage::hasBlob) - wanted
        wanted += new
        if (new.isNotEmpty()) {
            link.subscribe(new.map(topics::blob))
            arm(FIRST_PAUSE_S)
        }
    }

    /** Stops waiting for blobs that an earlier plan needed: they may never come. */
    private fun forget(names: Set<String>) {
        if (names.isNotEmpty()) link.unsubscribe(names.map(topics::blob))
        wanted -= names
    }

    private fun fetchWanted(): Unit = wanted.forEach { publish("fetch", Fetch(deviceId, it)) }

    private fun sendUpdate() {
        if (session.pending == null) return
        val payload = storage.update() ?: return
        link.publish(topics.device(deviceId, "update"), payload)
        arm(pauseS)
    }

    private fun arm(nextS: Double) {
        val open = wanted.isNotEmpty() || session.pending != null
        pauseS = if (open) minOf(nextS, LONGEST_PAUSE_S) else FIRST_PAUSE_S
        retryAtS = if (open) clock.nowSeconds() + pauseS else Double.POSITIVE_INFINITY
    }

    private fun publish(kind: String, message: Message, retain: Boolean = false): Unit =
        link.publish(topics.device(deviceId, kind), encode(message), retain)

    private fun save(changed: Session) {
        if (changed != session) {
            storage.save(changed)
            session = changed
        }
    }

    private fun shortened(text: String): String =
        if (text.codePointCount(0, text.length) <= 1000) text else text.substring(0, text.offsetByCodePoints(0, 1000))

    private companion object {
        /** An update without an answer, or a blob that does not come, is sent or asked for again after this. */
        const val FIRST_PAUSE_S = 10.0

        /** The pause doubles up to this. */
        const val LONGEST_PAUSE_S = 300.0
    }
}
