package io.shoal.core

import io.shoal.core.mqtt.MqttLink
import io.shoal.core.random.Noise
import io.shoal.core.wire.Bundle
import io.shoal.core.wire.DeviceStatus
import io.shoal.core.wire.PublicKey
import io.shoal.core.wire.Topics
import io.shoal.core.wire.encode

/**
 * A device: its id and fleet, where its broker is, what it trains on and with. The entry point of an app.
 *
 * @param trusted the key that bundles must be signed with; null: bundles are checked for damage, not for who made them
 * @param health asked at every check-in
 * @param noise where private noise comes from
 */
public class Phone(
    private val deviceId: String,
    fleet: String,
    private val broker: BrokerAddress,
    private val windows: Windows,
    private val storage: Storage,
    private val loader: GraphLoader,
    private val trusted: PublicKey? = null,
    private val health: () -> Health = { Health() },
    private val clock: Clock = Clock.SYSTEM,
    private val log: Log = Log.SILENT,
    private val noise: Noise = Noise.fromEntropy(),
) {
    private val topics = Topics(fleet)
    private val clientId = "$fleet.$deviceId"

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
     * [idleMs], at most [limitMs] (work that has begun is finished first), or until [stop] says so. The broker keeps the session, so
     * that what comes until the next job is not lost. Where [stop] ends a training, the plan stays and the next job begins it anew.
     *
     * @throws LinkException no broker within [connectMs], or it refuses this device
     */
    public fun job(
        idleMs: Long = 30_000,
        limitMs: Long = 8 * 60_000,
        connectMs: Long = 30_000,
        stop: () -> Boolean = { false },
    ): Outcome = connected(connectMs, stop) { agent, link ->
        val startedMs = nowMs()
        var lastEventMs = startedMs
        var outcome: Outcome? = null
        while (outcome == null) {
            val event = link.receive(POLL_MS)
            if (event != null) {
                agent.handle(event)
                lastEventMs = nowMs()
            }
            agent.tick()
            outcome = when {
                stop() -> Outcome.STOPPED
                !agent.waiting && nowMs() - lastEventMs >= idleMs -> Outcome.IDLE
                nowMs() - startedMs >= limitMs -> if (agent.waiting) Outcome.UNFINISHED else Outcome.IDLE
                else -> null
            }
        }
        outcome
    } ?: Outcome.STOPPED

    /**
     * Takes part until [stop] says so (asked several times a second), over lost connections.
     *
     * @throws LinkException the broker refuses this device
     */
    public fun run(stop: () -> Boolean) {
        connected(null, stop) { agent, link ->
            while (!stop()) {
                link.receive(POLL_MS)?.let(agent::handle)
                agent.tick()
            }
        }
    }

    /** Predictions by the model that the last finished run left here. */
    public fun predictor(): Predictor = Predictor(storage, loader, windows, trusted)

    /** Runs [body] on a connection; null where [stop] ended it in the midst of a plan. */
    private fun <T> connected(connectMs: Long?, stop: () -> Boolean, body: (Agent, MqttLink) -> T): T? {
        val status = topics.device(deviceId, "status")
        val will = Will(status, encode(DeviceStatus(deviceId, false)))
        return MqttLink.connect(broker, clientId, will, connectMs, stop, log).use { link ->
            val stoppable = StoppableLoader(loader, stop)
            Agent(deviceId, topics, link, windows, storage, stoppable, trusted, health, clock, log, noise).use { agent ->
                try {
                    body(agent, link)
                } catch (_: Stopped) {
                    null
                }.also { link.publish(status, encode(DeviceStatus(deviceId, false)), retain = true) }
            }
        }
    }

    private fun nowMs(): Long = System.nanoTime() / 1_000_000

    private companion object {
        const val POLL_MS = 250L
    }
}

/** A plan is left because the job was told to stop; no error of the plan's. */
private class Stopped : RuntimeException()

/** Graphs that run no more once [stop] says so: a training ends after the batch it is at. */
private class StoppableLoader(private val loader: GraphLoader, private val stop: () -> Boolean) : GraphLoader by loader {
    override fun load(bundle: Bundle): Graphs {
        val graphs = loader.load(bundle)
        return object : Graphs by graphs {
            override fun run(graph: String, inputs: Tensors): Tensors = if (stop()) throw Stopped() else graphs.run(graph, inputs)
        }
    }
}
