package io.shoal.core.mqtt

import java.io.ByteArrayOutputStream
import java.io.DataInputStream
import java.io.DataOutputStream
import java.io.IOException
import java.nio.ByteBuffer
import java.nio.charset.CharacterCodingException

/** Packet that breaks MQTT's rules, or a refusal. The connection is of no more use. */
internal class ProtocolException(message: String) : IOException(message)

/** Properties of a CONNACK by which a broker names its limits (MQTT 5, 3.2.2.3); null for none. */
internal data class BrokerLimits(
    val maxPacket: Int? = null,
    val retains: Boolean = true,
    val maxQos: Int = 2,
    val keepAliveS: Int? = null,
    val receiveMaximum: Int? = null,
    val assignedId: String? = null,
) {
    /** Return the features that Shoal needs and this broker denies; empty if none. */
    fun objection(): String = when {
        !retains -> "it retains no messages, and Shoal needs retained messages"
        maxQos == 0 -> "its maximum QoS is 0, and Shoal needs QoS 1"
        maxPacket != null && maxPacket < LEAST_PACKET -> "it takes packets of at most $maxPacket bytes, and Shoal needs $LEAST_PACKET"
        assignedId != null -> "it assigns the client id '$assignedId', and Shoal needs its own"
        else -> ""
    }

    private companion object {
        const val LEAST_PACKET = 4096
    }
}

/** Packet from a broker (MQTT 3.1.1, OASIS 2014, and MQTT 5, OASIS 2019, chapter 3). */
internal sealed interface Packet {
    data class ConnAck(val sessionPresent: Boolean, val code: Int, val limits: BrokerLimits = BrokerLimits()) : Packet

    class Publish(val topic: String, val payload: ByteArray, val id: Int?) : Packet

    /**
     * Publication whose payload was discarded: it is larger than its topic permits, or there is no
     * memory for it.
     */
    data class TooLarge(val topic: String, val bytes: Int, val id: Int?) : Packet

    data class PubAck(val id: Int, val code: Int = 0) : Packet

    data class SubAck(val id: Int, val codes: List<Int>) : Packet

    data class UnsubAck(val id: Int) : Packet

    data object PingResp : Packet

    /** End of the connection by the broker (MQTT 5). */
    data class Disconnect(val code: Int) : Packet
}

/** Maximum size of a payload. */
internal const val MAX_PAYLOAD = 64 * 1024 * 1024

/** Maximum size of a packet: topic with its length, packet identifier, properties, payload. */
private const val MAX_PACKET = MAX_PAYLOAD + 2 + 0xffff + 2 + 0xffff

/**
 * Read one packet. A payload with more bytes than [limit] returns for its topic is skipped without
 * taking memory for it. [is5]: true for a connection with MQTT 5.
 *
 * @throws ProtocolException a broker must not send such a packet, or the payload is above
 *   [MAX_PAYLOAD]; thrown before memory for it is taken
 */
internal fun readPacket(input: DataInputStream, is5: Boolean = false, limit: (String) -> Int = { MAX_PAYLOAD }): Packet {
    val first = input.readUnsignedByte()
    val length = readLength(input)
    if (length > MAX_PACKET) throw ProtocolException("packet of $length bytes: at most $MAX_PACKET are accepted")
    if (first ushr 4 == PUBLISH) return readPublication(input, first and 0xf, length, is5, limit)
    if (length > MAX_SMALL) throw ProtocolException("packet of type ${first ushr 4} of $length bytes: at most $MAX_SMALL are accepted")
    val body = ByteArray(length)
    input.readFully(body)
    return Reader(ByteBuffer.wrap(body), first, is5).packet()
}

private fun readPublication(input: DataInputStream, flags: Int, length: Int, is5: Boolean, limit: (String) -> Int): Packet {
    val qos = flags shr 1 and 3
    if (qos > 1) throw ProtocolException("publication with QoS $qos: at most 1 was requested")
    if (length < 2) throw ProtocolException("packet of type $PUBLISH: too short")
    val topicBytes = input.readUnsignedShort()
    var rest = length - 2 - topicBytes - 2 * qos
    if (rest < 0) throw ProtocolException("packet of type $PUBLISH: too short")
    val topic = topicOf(ByteArray(topicBytes).also(input::readFully))
    val id = if (qos == 1) input.readUnsignedShort() else null
    if (id == 0) throw ProtocolException("packet identifier 0 is not permitted")
    if (is5) {
        val properties = readLength(input)
        rest -= lengthBytes(properties) + properties
        if (rest < 0) throw ProtocolException("packet of type $PUBLISH: too short")
        skip(input, properties)
    }
    val payload = if (rest <= limit(topic)) roomFor(rest) else null
    if (payload == null) {
        skip(input, rest)
        return Packet.TooLarge(topic, rest, id)
    }
    input.readFully(payload)
    return Packet.Publish(topic, payload, id)
}

private fun roomFor(bytes: Int): ByteArray? = try {
    ByteArray(bytes)
} catch (_: OutOfMemoryError) {
    null
}

private fun skip(input: DataInputStream, bytes: Int) {
    val scratch = ByteArray(minOf(bytes, SCRATCH))
    var remaining = bytes
    while (remaining > 0) {
        val size = minOf(remaining, scratch.size)
        input.readFully(scratch, 0, size)
        remaining -= size
    }
}

private fun topicOf(bytes: ByteArray): String {
    val text = try {
        Charsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString()
    } catch (_: CharacterCodingException) {
        throw ProtocolException("topic: not UTF-8")
    }
    if (text.isEmpty() || text.any { it in "+#\u0000" }) throw ProtocolException("publication with an empty topic, or one with a wildcard")
    return text
}

private fun readLength(input: DataInputStream): Int {
    var length = 0
    for (shift in 0..21 step 7) {
        val byte = input.readUnsignedByte()
        length = length or (byte and 0x7f shl shift)
        if (byte < 0x80) return length
    }
    throw ProtocolException("packet length of more than four bytes")
}

/** Return the number of bytes in which a length is written. */
private fun lengthBytes(length: Int): Int = when {
    length < 1 shl 7 -> 1
    length < 1 shl 14 -> 2
    length < 1 shl 21 -> 3
    else -> 4
}

private class Reader(private val body: ByteBuffer, first: Int, private val is5: Boolean) {
    private val type = first ushr 4
    private val flags = first and 0xf

    fun packet(): Packet {
        if (flags != 0) throw ProtocolException("packet of type $type: flags $flags must be 0")
        val packet = when (type) {
            CONNACK -> connAck()
            PUBACK -> Packet.PubAck(id(), reason())
            SUBACK -> Packet.SubAck(id().also { if (is5) skipProperties() }, List(body.remaining()) { byte() })
            UNSUBACK -> Packet.UnsubAck(id()).also { if (is5) body.position(body.limit()) }
            PINGRESP -> Packet.PingResp
            else -> if (is5 && type == DISCONNECT) Packet.Disconnect(reason()) else throw ProtocolException("packet of type $type: no broker sends it")
        }
        if (body.hasRemaining()) throw ProtocolException("packet of type $type: ${body.remaining()} bytes too many")
        return packet
    }

    private fun connAck(): Packet {
        val acknowledge = byte()
        if (acknowledge > 1) throw ProtocolException("CONNACK: flags $acknowledge must be 0 or 1")
        val code = byte()
        val hasProperties = is5 && body.hasRemaining() // a broker without MQTT 5 refuses it as in MQTT 3.1.1
        return Packet.ConnAck(acknowledge == 1, code, if (hasProperties) limits() else BrokerLimits())
    }

    /** Return the reason code of MQTT 5 with which a packet may end. */
    private fun reason(): Int {
        if (!is5 || !body.hasRemaining()) return 0
        val code = byte()
        if (body.hasRemaining()) skipProperties()
        return code
    }

    private fun skipProperties() {
        val bytes = length()
        if (bytes > body.remaining()) tooShort()
        body.position(body.position() + bytes)
    }

    private fun limits(): BrokerLimits {
        val bytes = length()
        if (bytes != body.remaining()) throw ProtocolException("CONNACK: properties of $bytes bytes, but there are ${body.remaining()}")
        var limits = BrokerLimits()
        while (body.hasRemaining()) {
            limits = when (val property = byte()) {
                0x27 -> limits.copy(maxPacket = (short().toLong() shl 16 or short().toLong()).coerceAtMost(Int.MAX_VALUE.toLong()).toInt())
                0x25 -> limits.copy(retains = byte() != 0)
                0x24 -> limits.copy(maxQos = byte())
                0x21 -> limits.copy(receiveMaximum = short().also { if (it == 0) throw ProtocolException("CONNACK: receive maximum 0") })
                0x13 -> limits.copy(keepAliveS = short())
                0x12 -> limits.copy(assignedId = text().decodeToString())
                0x26 -> limits.also { text() }.also { text() }
                0x15, 0x16, 0x1a, 0x1c, 0x1f -> limits.also { text() }
                0x22 -> limits.also { short() }
                0x11 -> limits.also { short() }.also { short() }
                0x28, 0x29, 0x2a -> limits.also { byte() }
                else -> throw ProtocolException("CONNACK: property $property is not one of it")
            }
        }
        return limits
    }

    private fun text(): ByteArray {
        val bytes = short()
        if (bytes > body.remaining()) tooShort()
        return ByteArray(bytes).also { body.get(it) }
    }

    private fun length(): Int {
        var length = 0
        for (shift in 0..21 step 7) {
            val byte = byte()
            length = length or (byte and 0x7f shl shift)
            if (byte < 0x80) return length
        }
        throw ProtocolException("property length of more than four bytes")
    }

    private fun id(): Int = short().also { if (it == 0) throw ProtocolException("packet identifier 0 is not permitted") }

    private fun short(): Int = byte() shl 8 or byte()

    private fun byte(): Int = if (body.hasRemaining()) body.get().toInt() and 0xff else tooShort()

    private fun tooShort(): Nothing = throw ProtocolException("packet of type $type: too short")
}

/** Encoder of a client's packets, without the payload of a publication. */
internal object Packets {
    val PING: ByteArray = frame(0xc0)
    val DISCONNECT: ByteArray = frame(0xe0)

    /** Time for which a broker keeps a session (MQTT 5). */
    private const val SESSION_S = 7 * 24 * 3600

    /**
     * Return a CONNECT packet for a persistent session, named by [clientId], with a retained will
     * of QoS 1.
     */
    fun connect(clientId: String, keepAliveS: Int, will: Pair<String, ByteArray>?, username: String?, password: String?, is5: Boolean): ByteArray {
        val flags = (if (will != null) 0x2c else 0) or (if (username != null) 0x80 else 0) or (if (password != null) 0x40 else 0)
        return frame(0x10) {
            writeUTF("MQTT")
            writeByte(if (is5) 5 else 4)
            writeByte(flags)
            writeShort(keepAliveS)
            if (is5) {
                writeByte(5)
                writeByte(0x11) // Session Expiry Interval
                writeInt(SESSION_S)
            }
            text(clientId)
            will?.let { (topic, payload) ->
                noProperties(is5)
                text(topic)
                writeShort(payload.size)
                write(payload)
            }
            username?.let { text(it) }
            password?.let { text(it) }
        }
    }

    /** Return the start of a PUBLISH packet of QoS 1, before its payload. */
    fun publish(topic: String, id: Int, payloadBytes: Int, retain: Boolean, again: Boolean, is5: Boolean): ByteArray =
        frame(0x32 or (if (retain) 1 else 0) or (if (again) 8 else 0), payloadBytes) {
            text(topic)
            writeShort(id)
            noProperties(is5)
        }

    /** Return the size of the packet of a publication. */
    fun publishBytes(topic: String, payloadBytes: Int): Int = 5 + 2 + topic.toByteArray().size + 2 + 1 + payloadBytes

    fun pubAck(id: Int): ByteArray = frame(0x40) { writeShort(id) }

    fun subscribe(id: Int, topics: Collection<String>, is5: Boolean): ByteArray = frame(0x82) {
        writeShort(id)
        noProperties(is5)
        for (topic in topics) {
            text(topic)
            writeByte(1)
        }
    }

    fun unsubscribe(id: Int, topics: Collection<String>, is5: Boolean): ByteArray = frame(0xa2) {
        writeShort(id)
        noProperties(is5)
        topics.forEach { text(it) }
    }

    private fun DataOutputStream.noProperties(is5: Boolean) {
        if (is5) writeByte(0)
    }

    private fun DataOutputStream.text(text: String) {
        val bytes = text.toByteArray()
        require(bytes.size <= 0xffff && '\u0000' !in text) { "text '${text.take(80)}' cannot be sent by MQTT: at most 65535 bytes, without a zero character" }
        writeShort(bytes.size)
        write(bytes)
    }

    private fun frame(first: Int, following: Int = 0, body: DataOutputStream.() -> Unit = {}): ByteArray {
        val content = ByteArrayOutputStream().also { DataOutputStream(it).body() }.toByteArray()
        val packet = ByteArrayOutputStream(content.size + 5)
        packet.write(first)
        var length = content.size + following
        do {
            packet.write(if (length > 0x7f) length and 0x7f or 0x80 else length)
            length = length ushr 7
        } while (length > 0)
        packet.write(content)
        return packet.toByteArray()
    }
}

private const val CONNACK = 2
private const val PUBLISH = 3
private const val PUBACK = 4
private const val SUBACK = 9
private const val UNSUBACK = 11
private const val PINGRESP = 13
private const val DISCONNECT = 14

/** Maximum size of a packet other than a publication. */
private const val MAX_SMALL = 1024 * 1024
private const val SCRATCH = 16 * 1024
