package io.shoal.core

import io.shoal.core.mqtt.MqttLink
import io.shoal.core.random.Noise
import io.shoal.core.secret.SecretPolicy
import io.shoal.core.wire.DeviceStatus
import io.shoal.core.wire.Limits
import io.shoal.core.wire.Policy
import io.shoal.core.wire.PublicKey
import io.shoal.core.wire.Topics
import io.shoal.core.wire.encode

/**
 * Client of one device, and the entry point of an app: its id and fleet, its broker, its data and
 * its runtime.
 *
 * @param trusted root keys; one of them must have signed a bundle, or vouched for the signer of a
 *   plan or reply
 * @param insecure true to permit no trusted keys: then anybody who can write to the broker rules
 *   this device
 * @param policy what plans may ask of this device; null for the defaults
 * @param health function that is called at every check-in
 * @param noise source of private noise
 * @param mostBytes size of the largest model and update
 * @param progress called with the state of the work, on the thread that works
 * @param checkpointS shortest time between two checkpoints of a plan (seconds)
 * @param helpers text of the file of the helpers' keys; without it, the device takes part in no secret
 *   sum
 * @param key key of the device's certificate, which signs its answers in secret sums
 * @throws ConfigException there are no trusted keys and [insecure] is false, or a name is invalid;
 *   [policy] needs [helpers], or [helpers] needs [key]
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
    helpers: String? = null,
    key: EnrolmentKey? = null,
) {
    private val topics = Topics(fleet)
    private val status = topics.device(deviceId, "status")
    private val clientId = "$fleet.$deviceId"
    private val self = Identity(deviceId, fleet, trusted, policy, SecretPolicy.of(helpers, policy), key)
    private val environment = Environment(windows, storage, loader, health, clock, log, noise, mostBytes, progress, Pace(checkpointS))

    init {
        if (helpers != null && key == null) throw ConfigException("helpers need the key of this device's certificate, which signs its answers; enrol it, or install a certificate")
        if (trusted.isEmpty() && !insecure) throw ConfigException("no trusted key: anybody could rule this device; 'insecure' permits that")
        if (trusted.isEmpty()) log.write(Log.Level.WARNING, "Insecure: without a trusted key, anybody who reaches the broker can give this device work")
    }

    /** Outcome of a [job]. */
    public enum class Outcome {
        /** There is nothing to do now. */
        IDLE,

        /** An answer or a download is outstanding; another job should follow soon. */
        UNFINISHED,

        /** The job was asked to stop. */
        STOPPED,
    }

    /**
     * Run one job: connect, check in, do the pending work, and disconnect. The job ends when
     * nothing came and nothing was to do for [idleMs], at the latest after [limitMs], or when
     * [stop] returns true; both are tested between two batches of a training, and while connecting.
     * The broker keeps the session, so that messages that come before the next job are not lost. An
     * interrupted training leaves a checkpoint, from which the next job resumes.
     *
     * @throws LinkException no broker within [connectMs], or it refuses this device
     * @throws ConfigException another device uses this identity
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
     * Take part until [stop] returns true (called several times a second), over lost connections.
     *
     * @throws LinkException the broker refuses this device
     * @throws ConfigException another device uses this identity
     */
    public fun run(stop: () -> Boolean) {
        connected(null, stop, stop) { agent, link ->
            while (!stop()) step(agent, link)
        }
    }

    /**
     * Return a predictor with the model in use. [onReplaced] is called when another model answers
     * from then on.
     */
    @JvmOverloads
    public fun predictor(onReplaced: (Current) -> Unit = {}): Predictor = Predictor(storage, loader, trusted, onReplaced = onReplaced)

    /**
     * Process one event, or, if there is none, do the pending work. Return true if anything
     * happened.
     */
    private fun step(agent: Agent, link: Link): Boolean {
        val hasWork = agent.hasWork
        val event = link.receive(if (hasWork) 0 else POLL_MS)
        if (event != null) agent.handle(event) else if (hasWork) agent.work()
        if (agent.isSecond) throw ConfigException(Start.SECOND_DEVICE)
        agent.tick()
        return event != null || hasWork
    }

    /**
     * Run [body] on a connection. Return null if [stop] ended it, before there was one or in the
     * middle of a plan.
     */
    private fun <T> connected(connectMs: Long?, hurry: () -> Boolean, stop: () -> Boolean, body: (Agent, MqttLink) -> T): T? {
        // a second device must not end the other one's connection
        if (storage.start().refused) throw ConfigException(Start.SECOND_DEVICE)
        val gone = encode(DeviceStatus(deviceId, false))
        val link = try {
            MqttLink.connect(broker, clientId, Will(status, gone), connectMs, stop, log, topics::limit, hurry = hurry)
        } catch (error: LinkException) {
            if (hurry()) return null else throw error
        }
        return link.use {
            Agent(self, link, environment, stop).use { agent ->
                try {
                    body(agent, link)
                } catch (_: StoppedException) {
                    null
                }.also { link.publish(status, gone, retain = true) }
            }
        }
    }

    private fun nowMs(): Long = System.nanoTime() / 1_000_000

    public companion object {
        private const val POLL_MS = 250L

        /** Default of the shortest time between two checkpoints (seconds). */
        public const val CHECKPOINT_S: Double = Pace.EVERY_S
    }
}
