package io.shoal.core.mqtt

import io.shoal.core.BrokerAddress
import io.shoal.core.Delivery
import io.shoal.core.LimitExceededException
import io.shoal.core.Link
import io.shoal.core.LinkDown
import io.shoal.core.LinkEvent
import io.shoal.core.LinkException
import io.shoal.core.LinkUp
import io.shoal.core.Log
import io.shoal.core.Will
import io.shoal.core.printable
import io.shoal.core.unless
import io.shoal.core.wire.PacketLimit
import io.shoal.core.wire.WHOLE_BYTES
import java.io.IOException
import java.util.concurrent.CountDownLatch
import java.util.concurrent.LinkedBlockingQueue
import java.util.concurrent.TimeUnit
import kotlin.concurrent.thread

/**
 * [Link] over MQTT 5 or else 3.1.1, with two threads of its own: one connects, reads, and connects again; one
 * watches that the broker is alive. After a new connection, subscriptions are renewed, and
 * publications without an acknowledgement are sent again. An error on these threads ends a
 * connection at most.
 */
internal class MqttLink private constructor(
    private val address: BrokerAddress,
    private val clientId: String,
    private val will: Will?,
    private val log: Log,
    private val keepAliveS: Int,
    private val payloadLimit: (String) -> Int,
    private val hurry: () -> Boolean,
) : Link {
    private val events = LinkedBlockingQueue<Incoming>()
    private val room = Room(MAX_PAYLOAD)
    private val closed = CountDownLatch(1)
    private val inFlight = InFlight()
    private val topics = LinkedHashSet<String>()
    private var unacknowledged: Incoming? = null

    @Volatile private var connection: Connection? = null

    @Volatile override var limit: PacketLimit = PacketLimit.MQTT
        private set

    private class Incoming(val event: LinkEvent?, val from: Connection? = null, val id: Int? = null, val failure: LinkException? = null) {
        /** Size in memory of the parts that come from outside. */
        val bytes: Int get() = if (event is Delivery) event.payload.size + OVERHEAD else 0
    }

    override fun subscribe(topics: Collection<String>) {
        synchronized(this.topics) { this.topics += topics }
        send { subscribe(it, topics) }
    }

    override fun unsubscribe(topics: Collection<String>) {
        synchronized(this.topics) { this.topics -= topics.toSet() }
        send { it.write(Packets.unsubscribe(inFlight.newId(), topics, it.is5)) }
    }

    /**
     * Publish (QoS 1) without waiting for an answer.
     *
     * @throws LimitExceededException the payload is above 64 MiB, or the packet larger than [limit]
     */
    override fun publish(topic: String, payload: ByteArray, retain: Boolean) {
        if (payload.size > MAX_PAYLOAD) throw LimitExceededException("payload of ${payload.size} bytes: at most $MAX_PAYLOAD can be published")
        val bytes = Packets.publishBytes(topic, payload.size)
        if (bytes > limit.bytes) throw LimitExceededException("${limit.origin}, and a message on $topic has $bytes")
        inFlight.add(topic, payload, retain) ?: return
        send { inFlight.send(it) }
    }

    /**
     * Return the next event, or null after [timeoutMs].
     *
     * @throws LinkException the broker refuses this client for good
     */
    override fun receive(timeoutMs: Long): LinkEvent? {
        unacknowledged?.let { last -> send { if (it === last.from) it.write(Packets.pubAck(last.id!!)) } }
        unacknowledged = null
        val next = events.poll(timeoutMs, TimeUnit.MILLISECONDS) ?: return null
        room.give(next.bytes)
        next.failure?.let { throw it }
        if (next.id != null) unacknowledged = next
        return next.event
    }

    /**
     * Send the queued publications (for a few seconds, or less in a hurry), then disconnect without
     * the will. The broker keeps the session.
     */
    override fun close() {
        unacknowledged?.let { last -> send { if (it === last.from) it.write(Packets.pubAck(last.id!!)) } }
        unacknowledged = null
        if (connection != null) inFlight.awaitEmpty(if (hurry()) HURRY_MS else FLUSH_MS)
        closed.countDown()
        send { it.write(Packets.DISCONNECT) }
        connection?.close()
    }

    /** Close the connection as a crash would: the broker publishes the will. For tests. */
    internal fun vanish() {
        closed.countDown()
        connection?.close()
    }

    /**
     * Close the connection as a network failure would: the link connects again by itself. For
     * tests.
     */
    internal fun interrupt() {
        connection?.close()
    }

    private inline fun send(write: (Connection) -> Unit) {
        val current = connection ?: return
        try {
            write(current)
        } catch (_: IOException) {
            current.close() // the reading thread notices, and connects again
        }
    }

    private fun stayConnected(first: Connection) {
        var current = first
        val pause = Backoff()
        var (first, times) = Pair<InFlight.Publication?, Int>(null, 0)
        while (true) {
            val startedNs = System.nanoTime()
            val reason = serve(current)
            if (isClosed()) return
            val unanswered = inFlight.first()
            times = if (unanswered != null && unanswered === first) times + 1 else 1
            first = unanswered
            events += Incoming(LinkDown(if (times < SUSPICIOUS) reason else "$reason, ${cause(unanswered!!, times)}"))
            if (System.nanoTime() - startedNs > STEADY_NS) pause.reset()
            current = reconnect(pause) ?: return
        }
    }

    private fun cause(message: InFlight.Publication, times: Int) =
        "$times times before it acknowledged a message of ${message.payload.size} bytes on ${message.topic}: does it permit this topic and size?"

    private fun reconnect(pause: Backoff): Connection? {
        while (!closed.await(pause.nextMs(), TimeUnit.MILLISECONDS)) {
            try {
                return Connection.open(address, clientId, will, keepAliveS, payloadLimit)
            } catch (error: LinkException) {
                events += Incoming(null, failure = error)
                return null
            } catch (error: Throwable) {
                writeLog(Log.Level.INFO, "No connection to the broker, trying again: broker=$address: $error")
            }
        }
        return null
    }

    /** Read until the connection ends, and return the reason why it did. */
    private fun serve(current: Connection): String {
        try {
            obey(current)
            connection = current
            if (isClosed()) throw IOException("closed while connecting")
            subscribe(current, synchronized(topics) { topics.toList() })
            inFlight.send(current)
            events += Incoming(LinkUp)
            while (true) act(current, current.read())
        } catch (error: Throwable) {
            return error.toString()
        } finally {
            connection = null
            current.close()
        }
    }

    /** Take over the limits of a new connection. */
    private fun obey(current: Connection) {
        limit = current.limit
        if (limit.payloadBytes < WHOLE_BYTES) writeLog(Log.Level.INFO, "Larger payloads go in pieces: ${limit.origin}")
        for (each in inFlight.drop(limit.bytes)) { // they would end every connection
            writeLog(Log.Level.WARNING, "Message not sent: topic=${each.topic} bytes=${each.payload.size}: ${limit.origin}")
        }
    }

    private fun subscribe(current: Connection, topics: Collection<String>) =
        topics.chunked(MOST_FILTERS).forEach { current.write(Packets.subscribe(inFlight.newId(), it, current.is5)) }

    private fun act(current: Connection, packet: Packet) {
        when (packet) {
            is Packet.Publish -> {
                val incoming = Incoming(Delivery(packet.topic, packet.payload), current, packet.id)
                room.take(incoming.bytes) { current.isOpen }
                events += incoming
            }
            is Packet.TooLarge -> {
                writeLog(Log.Level.WARNING, "Message refused, too large: bytes=${packet.bytes} topic=${printable(packet.topic.take(200))}")
                packet.id?.let { current.write(Packets.pubAck(it)) } // or it would come again for ever
            }
            is Packet.PubAck -> {
                val publication = inFlight.acknowledge(packet.id)
                if (packet.code >= REFUSED) writeLog(Log.Level.ERROR, "The broker denies a publication: topic=${publication?.topic} code=${packet.code}")
                inFlight.send(current)
            }
            is Packet.SubAck -> packet.codes.firstOrNull { it >= REFUSED }?.let {
                writeLog(Log.Level.ERROR, "The broker denies a subscription: broker=$address code=$it")
            }
            is Packet.UnsubAck, is Packet.PingResp -> {}
            is Packet.Disconnect -> throw ProtocolException("the broker ended the connection with code ${packet.code}")
            is Packet.ConnAck -> throw ProtocolException("a second CONNACK")
        }
    }

    private fun watch() {
        while (!closed.await((connection?.keepAliveMs ?: (keepAliveS * 1000L)) / 4, TimeUnit.MILLISECONDS)) {
            try {
                connection?.watch()
            } catch (error: Throwable) {
                writeLog(Log.Level.WARNING, "Connection to the broker ended: broker=$address: $error")
                connection?.close()
            }
        }
    }

    private fun writeLog(level: Log.Level, line: String) {
        try {
            log.write(level, line)
        } catch (_: Throwable) {
            // an error of the log must not end the link
        }
    }

    private fun isClosed() = closed.count == 0L

    private fun start(first: Connection) {
        obey(first)
        connection = first
        thread(isDaemon = true, name = "shoal-mqtt") { stayConnected(first) }
        thread(isDaemon = true, name = "shoal-mqtt-watch") { watch() }
    }

    companion object {
        private const val KEEP_ALIVE_S = 30
        private const val MOST_FILTERS = 8

        /** Number of connections after which a message without an acknowledgement counts as their end. */
        private const val SUSPICIOUS = 3
        private const val POLL_MS = 100L
        private const val OVERHEAD = 512
        private const val FLUSH_MS = 5_000L
        private const val HURRY_MS = 300L
        private const val REFUSED = 0x80
        private const val STEADY_NS = 30_000_000_000L

        /**
         * Connect, trying for [waitMs] (null: without end, or until [giveUp] returns true). A
         * publication with more bytes than [limit] returns for its topic is refused. If [hurry]
         * returns true, closing the link does not wait.
         *
         * @throws LinkException no broker in that time; at once if TLS fails or the broker refuses
         *   this client
         */
        fun connect(
            address: BrokerAddress,
            clientId: String,
            will: Will? = null,
            waitMs: Long? = 10_000,
            giveUp: () -> Boolean = { false },
            log: Log = Log.SILENT,
            limit: (String) -> Int = { MAX_PAYLOAD },
            keepAliveS: Int = KEEP_ALIVE_S,
            hurry: () -> Boolean = { false },
        ): MqttLink {
            val startedNs = System.nanoTime()
            val pause = Backoff()
            while (true) {
                try {
                    val first = unless(giveUp, Connection::close) { Connection.open(address, clientId, will, keepAliveS, limit) }
                        ?: throw IOException("connecting was given up")
                    return MqttLink(address, clientId, will, log, keepAliveS, limit, hurry).apply { start(first) }
                } catch (error: IOException) {
                    val pauseMs = pause.nextMs()
                    val late = waitMs != null && (System.nanoTime() - startedNs) / 1_000_000 + pauseMs > waitMs
                    if (late || giveUp()) throw LinkException("broker $address: no connection: $error", error)
                    log.write(Log.Level.INFO, "No connection to the broker, trying again: broker=$address: $error")
                    val wakeNs = System.nanoTime() + pauseMs * 1_000_000
                    while (System.nanoTime() < wakeNs && !giveUp()) Thread.sleep(minOf(pauseMs, POLL_MS))
                }
            }
        }
    }
}
