package io.shoal.core

import io.shoal.core.wire.PacketLimit
import java.io.Closeable

/** Event on a [Link]. */
internal sealed interface LinkEvent

/** Publication that arrived. */
internal class Delivery(val topic: String, val payload: ByteArray) : LinkEvent

/** New connection, with all subscriptions. */
internal object LinkUp : LinkEvent

/** Lost connection. The link tries to connect again. */
internal class LinkDown(val reason: String) : LinkEvent

/** Message that the broker publishes, retained, when the client vanishes. */
internal class Will(val topic: String, val payload: ByteArray)

/**
 * Connection of a client to a broker. All its events are read, in order, from [receive]; the rules
 * are those of `wire/links/port.py`. Used by one thread.
 */
internal interface Link : Closeable {
    /** Limit of the last connection's packets. */
    val limit: PacketLimit

    /** Subscribe (QoS 1), now and after every new connection. */
    fun subscribe(topics: Collection<String>)

    /** Undo [subscribe]. */
    fun unsubscribe(topics: Collection<String>)

    /**
     * Publish (QoS 1) without waiting for an answer. Without a connection, the publication is
     * queued.
     *
     * @throws LimitExceededException the packet would be larger than [limit]
     */
    fun publish(topic: String, payload: ByteArray, retain: Boolean = false)

    /**
     * Return the next event, or null after [timeoutMs]. A publication is acknowledged to the broker
     * when the next event is requested. If a crash interrupts its handling, it comes again.
     */
    fun receive(timeoutMs: Long): LinkEvent?
}
