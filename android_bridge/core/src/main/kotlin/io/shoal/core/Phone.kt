package io.shoal.core

import io.shoal.core.mqtt.MqttLink
import io.shoal.core.random.Noise
import io.shoal.core.wire.DeviceStatus
import io.shoal.core.wire.Limits
import io.shoal.core.wire.Policy
import io.shoal.core.wire.PublicKey
import io.shoal.core.wire.Topics
import io.shoal.core.wire.encode

/**
 * A device: its id and fleet, where its broker is, what it trains on and with. The entry point of an app.
 *
 * @param trusted the root keys: one of them must have signed a bundle, or vouched for who signs plans and replies
 * @param insecure without trusted keys anybody who can write to the broker rules this device: that has to be said
 * @param policy what plans may ask of this device; null: what is usual
 * @param health asked at every check-in
 * @param noise where private noise comes from
 * @param mostBytes of the largest model and update
 * @param progress told what the device is doing, by the thread that does it
 * @param checkpointS work on a plan goes on for so many seconds, at least, between two checkpoints
 * @throws ConfigException neither trusted keys nor [insecure], or a name that cannot be one
 */
@InternalShoalApi
public class Phone(
    private val deviceId: String,
    fleet: String,
    private val broker: BrokerAddress,
    private val windows: Windows,
    private val storage: Storage,
    private val loader: GraphLoader,
    private val trusted: List<PublicKey>,
    insecure: Boolean = false,
    policy: Policy? = null,
    health: () -> Health = { Health() },
    clock: Clock = Clock.SYSTEM,
    private val log: Log = Log.SILENT,
    noise: Noise = Noise.fromEntropy(),
    mostBytes: Int = Limits.PROTOCOL.totalBytes,
    progress: (Progress) -> Unit = {},
    checkpointS: Double = CHECKPOINT_S,
) {
    private val topics = Topics(fleet)
    private val status = topics.device(deviceId, "status")
    private val clientId = "$fleet.$deviceId"
    private val self = Identity(deviceId, fleet, trusted, policy)
    private val around = Surroundings(windows, storage, loader, health, clock, log, noise, mostBytes, progress, Pace(checkpointS))

    init {
        if (trusted.isEmpty() && !insecure) throw ConfigException("no trusted key: anybody could rule this device; 'insecure' permits that")
        if (trusted.isEmpty()) log.write(Log.Level.WARNING, "insecure: without a trusted key every plan and every bundle is believed")
    }

    /** What a [job] came to. */
    public enum class Outcome {
        /** Nothing is left to do here; the next job finds what comes until then. */
        IDLE,

        /** Something waits for an answer or a download; another job should follow soon. */
        UNFINISHED,

        /** It was asked to stop. */
        STOPPED,
    }

    /**
     * One job: connects, checks in, does what is there to do, and disconnects. It stays until nothing came and nothing was to do for
     * [idleMs], at most [limitMs], or until [stop] says so; both are looked at between two batches of a training, and while it connects. The broker keeps the
     * session, so that what comes until the next job is not lost. Where a training is ended so, it leaves a checkpoint, and the next job goes
     * on from there.
     *
     * @throws LinkException no broker within [connectMs], or it refuses this device
     */
    public fun job(
        idleMs: Long = 30_000,
        limitMs: Long = 8 * 60_000,
        connectMs: Long = 30_000,
        stop: () -> Boolean = { false },
    ): Outcome {
        val startedMs = nowMs()
        val isOver = { nowMs() - startedMs >= limitMs }
        val outcome = connected(connectMs, stop, { stop() || isOver() }) { agent, link ->
            var lastEventMs = nowMs()
            var outcome: Outcome? = null
            while (outcome == null) {
                if (step(agent, link)) lastEventMs = nowMs()
                outcome = when {
                    stop() -> Outcome.STOPPED
                    !agent.waiting && nowMs() - lastEventMs >= idleMs -> Outcome.IDLE
                    isOver() -> if (agent.waiting) Outcome.UNFINISHED else Outcome.IDLE
                    else -> null
                }
            }
            outcome
        }
        return outcome ?: if (stop()) Outcome.STOPPED else Outcome.UNFINISHED
    }

    /**
     * Takes part until [stop] says so (asked several times a second), over lost connections.
     *
     * @throws LinkException the broker refuses this device
     */
    public fun run(stop: () -> Boolean) {
        connected(null, stop, stop) { agent, link ->
            while (!stop()) step(agent, link)
        }
    }

    /** Predictions by the model in use; [onReplaced] is told when another one answers from then on. */
    @JvmOverloads
    public fun predictor(onReplaced: (Current) -> Unit = {}): Predictor = Predictor(storage, loader, trusted, onReplaced)

    /** One event, or, where none is there to be read, what there is to do. Whether anything happened. */
    private fun step(agent: Agent, link: Link): Boolean {
        val hasWork = agent.hasWork
        val event = link.receive(if (hasWork) 0 else POLL_MS)
        if (event != null) agent.handle(event) else if (hasWork) agent.work()
        agent.tick()
        return event != null || hasWork
    }

    /** Runs [body] on a connection; null where [stop] ended it, before there was one or in the midst of a plan. */
    private fun <T> connected(connectMs: Long?, hurry: () -> Boolean, stop: () -> Boolean, body: (Agent, MqttLink) -> T): T? {
        val gone = encode(DeviceStatus(deviceId, false))
        val link = try {
            MqttLink.connect(broker, clientId, Will(status, gone), connectMs, stop, log, topics::limit, hurry = hurry)
        } catch (error: LinkException) {
            if (hurry()) return null else throw error
        }
        return link.use {
            Agent(self, link, around, stop).use { agent ->
                try {
                    body(agent, link)
                } catch (_: Stopped) {
                    null
                }.also { link.publish(status, gone, retain = true) }
            }
        }
    }

    private fun nowMs(): Long = System.nanoTime() / 1_000_000

    public companion object {
        private const val POLL_MS = 250L

        /** What the seconds between two checkpoints are unless the app says others. */
        public const val CHECKPOINT_S: Double = Pace.EVERY_S
    }
}
