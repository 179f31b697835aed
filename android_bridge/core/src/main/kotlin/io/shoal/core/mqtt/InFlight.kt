package io.shoal.core.mqtt

import java.util.concurrent.TimeUnit
import java.util.concurrent.locks.ReentrantLock
import kotlin.concurrent.withLock

/** Publications without an acknowledgement, in order, and the packet identifiers in use. */
internal class InFlight {
    private val lock = ReentrantLock()
    private val emptied = lock.newCondition()
    private val open = LinkedHashMap<Int, Publication>()
    private var lastId = 0

    /**
     * Publication under way. It is written by one thread at a time, and at most once to each
     * connection.
     */
    class Publication(val id: Int, val topic: String, val payload: ByteArray, val retain: Boolean) {
        private var writtenTo: Connection? = null

        @Synchronized
        fun writeTo(connection: Connection) {
            if (writtenTo === connection) return
            val again = writtenTo != null
            writtenTo = connection
            connection.write(Packets.publish(topic, id, payload.size, retain, again, connection.is5), payload)
        }
    }

    /**
     * Add a publication and return it. Return null if an equal one still waits for its
     * acknowledgement: sending it again would be of no use.
     */
    fun add(topic: String, payload: ByteArray, retain: Boolean): Publication? = lock.withLock {
        if (!retain && open.values.any { it.topic == topic && it.payload.contentEquals(payload) }) return null
        val id = newId()
        Publication(id, topic, payload, retain).also { open[id] = it }
    }

    /** Return a packet identifier that no publication has. */
    fun newId(): Int = lock.withLock {
        do lastId = lastId % 0xffff + 1 while (lastId in open)
        lastId
    }

    /** Remove a publication that the broker acknowledged, and return it. */
    fun acknowledge(id: Int): Publication? = lock.withLock {
        open.remove(id).also { if (open.isEmpty()) emptied.signalAll() }
    }

    /** Return the first publication without an acknowledgement, or null. */
    fun first(): Publication? = lock.withLock { open.values.firstOrNull() }

    /** Remove the publications that are larger than a broker takes, and return them. */
    fun drop(most: Int): List<Publication> = lock.withLock {
        open.values.filter { Packets.publishBytes(it.topic, it.payload.size) > most }.onEach { acknowledge(it.id) }
    }

    /**
     * Send the open publications that this connection has not sent, in order, and no more at a time
     * than the broker takes.
     */
    fun send(connection: Connection): Unit =
        lock.withLock { open.values.take(connection.mostInFlight) }.forEach { it.writeTo(connection) }

    /** Wait until all are acknowledged, at most [timeoutMs]. */
    fun awaitEmpty(timeoutMs: Long): Unit = lock.withLock {
        var leftNs = TimeUnit.MILLISECONDS.toNanos(timeoutMs)
        while (open.isNotEmpty() && leftNs > 0) leftNs = emptied.awaitNanos(leftNs)
    }
}
