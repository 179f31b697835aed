package io.shoal.core

import java.io.Closeable

/** Something that happened on a [Link]. */
internal sealed interface LinkEvent

/** A publication that arrived. */
internal class Delivery(val topic: String, val payload: ByteArray) : LinkEvent

/** Connected; subscriptions are in place. */
internal object LinkUp : LinkEvent

/** Connection lost; the link is trying to connect again. */
internal class LinkDown(val reason: String) : LinkEvent

/** What the broker publishes, retained, when the client vanishes. */
internal class Will(val topic: String, val payload: ByteArray)

/**
 * A client's connection to a broker. Everything that happens on it is read, in order, from [receive]; the rules are those of
 * `wire/links/port.py`. Used by one thread.
 */
internal interface Link : Closeable {
    /** Subscribes (QoS 1), now and after every new connection. */
    fun subscribe(topics: Collection<String>)

    /** Undoes [subscribe]. */
    fun unsubscribe(topics: Collection<String>)

    /** Publishes (QoS 1). Waits for no answer; while the connection is down the publication is queued. */
    fun publish(topic: String, payload: ByteArray, retain: Boolean = false)

    /**
     * The next event; null after [timeoutMs]. A publication is acknowledged to the broker when the next event is asked for, so that one
     * whose handling a crash cut short comes again.
     */
    fun receive(timeoutMs: Long): LinkEvent?
}
