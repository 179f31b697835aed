package io.shoal.core.mqtt

import java.io.ByteArrayOutputStream
import java.io.DataInputStream
import java.io.DataOutputStream
import java.io.IOException
import java.nio.ByteBuffer
import java.nio.charset.CharacterCodingException

/** The other side broke MQTT's rules, or refused us; the connection is of no more use. */
internal class ProtocolException(message: String) : IOException(message)

/** What a broker sends (MQTT 3.1.1, OASIS 2014, chapter 3). */
internal sealed interface Packet {
    data class ConnAck(val sessionPresent: Boolean, val code: Int) : Packet

    class Publish(val topic: String, val payload: ByteArray, val id: Int?) : Packet

    /** A publication of which the payload was not kept: it is larger than its topic may have, or there is no memory for it. */
    data class TooLarge(val topic: String, val bytes: Int, val id: Int?) : Packet

    data class PubAck(val id: Int) : Packet

    data class SubAck(val id: Int, val codes: List<Int>) : Packet

    data class UnsubAck(val id: Int) : Packet

    data object PingResp : Packet
}

/** A payload has at most this many bytes. */
internal const val MAX_PAYLOAD = 64 * 1024 * 1024

/** A topic with its length, and a packet identifier, beside the payload. */
private const val MAX_PACKET = MAX_PAYLOAD + 2 + 0xffff + 2

/**
 * Reads one packet. A payload with more bytes than [limit] says for its topic is read past, without taking memory for it.
 *
 * @throws ProtocolException one that a broker must not send, or a payload above [MAX_PAYLOAD]; thrown before memory for it is taken
 */
internal fun readPacket(input: DataInputStream, limit: (String) -> Int = { MAX_PAYLOAD }): Packet {
    val first = input.readUnsignedByte()
    val length = readLength(input)
    if (length > MAX_PACKET) throw ProtocolException("a packet of $length bytes: at most $MAX_PACKET are accepted")
    if (first ushr 4 == PUBLISH) return readPublication(input, first and 0xf, length, limit)
    if (length > MAX_SMALL) throw ProtocolException("a packet of type ${first ushr 4} with $length bytes")
    val body = ByteArray(length)
    input.readFully(body)
    return Reader(ByteBuffer.wrap(body), first).packet()
}

private fun readPublication(input: DataInputStream, flags: Int, length: Int, limit: (String) -> Int): Packet {
    val qos = flags shr 1 and 3
    if (qos > 1) throw ProtocolException("a publication with QoS $qos, none was asked for")
    if (length < 2) throw ProtocolException("a packet of type $PUBLISH that is too short")
    val topicBytes = input.readUnsignedShort()
    val rest = length - 2 - topicBytes - 2 * qos
    if (rest < 0) throw ProtocolException("a packet of type $PUBLISH that is too short")
    val topic = topicOf(ByteArray(topicBytes).also(input::readFully))
    val id = if (qos == 1) input.readUnsignedShort() else null
    if (id == 0) throw ProtocolException("packet identifier 0")
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
    var left = bytes
    while (left > 0) {
        val size = minOf(left, scratch.size)
        input.readFully(scratch, 0, size)
        left -= size
    }
}

private fun topicOf(bytes: ByteArray): String {
    val text = try {
        Charsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString()
    } catch (_: CharacterCodingException) {
        throw ProtocolException("a topic that is not UTF-8")
    }
    if (text.isEmpty() || text.any { it in "+#\u0000" }) throw ProtocolException("a publication to no topic")
    return text
}

private fun readLength(input: DataInputStream): Int {
    var length = 0
    for (shift in 0..21 step 7) {
        val byte = input.readUnsignedByte()
        length = length or (byte and 0x7f shl shift)
        if (byte < 0x80) return length
    }
    throw ProtocolException("a packet's length has more than four bytes")
}

private class Reader(private val body: ByteBuffer, first: Int) {
    private val type = first ushr 4
    private val flags = first and 0xf

    fun packet(): Packet {
        if (flags != 0) throw ProtocolException("a packet of type $type with flags $flags")
        val packet = when (type) {
            CONNACK -> connAck()
            PUBACK -> Packet.PubAck(id())
            SUBACK -> Packet.SubAck(id(), List(body.remaining()) { byte() })
            UNSUBACK -> Packet.UnsubAck(id())
            PINGRESP -> Packet.PingResp
            else -> throw ProtocolException("a packet of type $type, which no broker sends")
        }
        if (body.hasRemaining()) throw ProtocolException("a packet of type $type with ${body.remaining()} bytes too many")
        return packet
    }

    private fun connAck(): Packet {
        val acknowledge = byte()
        if (acknowledge > 1) throw ProtocolException("CONNACK with flags $acknowledge")
        return Packet.ConnAck(acknowledge == 1, byte())
    }

    private fun id(): Int = short().also { if (it == 0) throw ProtocolException("packet identifier 0") }

    private fun short(): Int = byte() shl 8 or byte()

    private fun byte(): Int = if (body.hasRemaining()) body.get().toInt() and 0xff else tooShort()

    private fun tooShort(): Nothing = throw ProtocolException("a packet of type $type that is too short")
}

/** Makes what a client sends: a packet without the payload of a publication. */
internal object Packets {
    val PING: ByteArray = frame(0xc0)
    val DISCONNECT: ByteArray = frame(0xe0)

    /** A persistent session ([clientId] names it), with a retained will of QoS 1. */
    fun connect(clientId: String, keepAliveS: Int, will: Pair<String, ByteArray>?, username: String?, password: String?): ByteArray {
        val flags = (if (will != null) 0x2c else 0) or (if (username != null) 0x80 else 0) or (if (password != null) 0x40 else 0)
        return frame(0x10) {
            writeUTF("MQTT")
            writeByte(4)
            writeByte(flags)
            writeShort(keepAliveS)
            text(clientId)
            will?.let { (topic, payload) ->
                text(topic)
                writeShort(payload.size)
                write(payload)
            }
            username?.let { text(it) }
            password?.let { text(it) }
        }
    }

    /** What comes before the payload of a publication of QoS 1. */
    fun publish(topic: String, id: Int, payloadBytes: Int, retain: Boolean, again: Boolean): ByteArray =
        frame(0x32 or (if (retain) 1 else 0) or (if (again) 8 else 0), payloadBytes) {
            text(topic)
            writeShort(id)
        }

    fun pubAck(id: Int): ByteArray = frame(0x40) { writeShort(id) }

    fun subscribe(id: Int, topics: Collection<String>): ByteArray = frame(0x82) {
        writeShort(id)
        for (topic in topics) {
            text(topic)
            writeByte(1)
        }
    }

    fun unsubscribe(id: Int, topics: Collection<String>): ByteArray = frame(0xa2) {
        writeShort(id)
        topics.forEach { text(it) }
    }

    private fun DataOutputStream.text(text: String) {
        val bytes = text.toByteArray()
        require(bytes.size <= 0xffff && '\u0000' !in text) { "MQTT cannot carry the text '${text.take(80)}'" }
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

/** Only a publication is ever long. */
private const val MAX_SMALL = 1024 * 1024
private const val SCRATCH = 16 * 1024
