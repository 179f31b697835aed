package io.shoal.core.mqtt

import org.junit.jupiter.params.ParameterizedTest
import org.junit.jupiter.params.provider.ValueSource
import java.io.DataInputStream
import java.io.EOFException
import java.io.IOException
import java.util.Random
import kotlin.test.Test
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue

class PacketsTest {
    private fun read(bytes: ByteArray, is5: Boolean = false) = readPacket(DataInputStream(bytes.inputStream()), is5)

    private fun bytes(hex: String) = hex.filter { it != ' ' }.chunked(2).map { it.toInt(16).toByte() }.toByteArray()

    @Test
    fun `lengths of one to four bytes`() {
        for (is5 in listOf(false, true)) {
            for (size in listOf(0, 121, 122, 123, 16_377, 16_378, 16_379, 2_097_145, 2_097_146, 2_097_147)) {
                val payload = ByteArray(size) { it.toByte() }
                val packet = Packets.publish("t", 7, size, retain = true, again = false, is5 = is5) + payload
                val read = read(packet, is5) as Packet.Publish
                assertContentEquals(payload, read.payload)
                assertEquals(Pair("t", 7), Pair(read.topic, read.id))
            }
        }
    }

    @Test
    fun `a connection with a will and a password`() {
        val body = bytes("0004 4d515454 04 ec 001e 0002 6964 0001 77 0003 010203 0004 75736572 0005 7365c3a974")
        val packet = Packets.connect("id", 30, Pair("w", byteArrayOf(1, 2, 3)), "user", "se\u00e9t", is5 = false)
        assertContentEquals(byteArrayOf(0x10, body.size.toByte()) + body, packet)
        val body5 = bytes("0004 4d515454 05 ec 001e 05 11 00093a80 0002 6964 00 0001 77 0003 010203 0004 75736572 0005 7365c3a974")
        val packet5 = Packets.connect("id", 30, Pair("w", byteArrayOf(1, 2, 3)), "user", "se\u00e9t", is5 = true)
        assertContentEquals(byteArrayOf(0x10, body5.size.toByte()) + body5, packet5)
    }

    @Test
    fun `acknowledgements are read`() {
        assertEquals(Packet.ConnAck(true, 0), read(bytes("20020100")))
        assertEquals(Packet.PubAck(258), read(bytes("40020102")))
        assertEquals(Packet.SubAck(1, listOf(1, 128)), read(bytes("900400010180")))
        assertEquals(Packet.UnsubAck(1), read(bytes("b0020001")))
        assertEquals(Packet.PingResp, read(bytes("d000")))
    }

    @Test
    fun `answers of MQTT 5 are read with their reasons and without their properties`() {
        assertEquals(Packet.ConnAck(false, 0x84), read(bytes("20020084"), true))
        assertEquals(Packet.ConnAck(false, 1), read(bytes("20020001"), true))
        assertEquals(Packet.PubAck(258), read(bytes("40020102"), true))
        assertEquals(Packet.PubAck(258, 0x87), read(bytes("4003010287"), true))
        assertEquals(Packet.PubAck(258, 0x97), read(bytes("40080102 97 04 1f 0001 78"), true))
        assertEquals(Packet.SubAck(1, listOf(1, 0x87)), read(bytes("9005 0001 00 01 87"), true))
        assertEquals(Packet.UnsubAck(1), read(bytes("b004 0001 00 00"), true))
        assertEquals(Packet.Disconnect(0x95), read(bytes("e00195"), true))
        assertEquals(Packet.Disconnect(0), read(bytes("e000"), true))
        val published = read(bytes("320b 0001 74 0007 03 23 0001 aabb"), true)
        assertContentEquals(bytes("aabb"), (published as Packet.Publish).payload)
        for (hex in listOf("e00195", "4003010287")) assertFailsWith<ProtocolException>(hex) { read(bytes(hex)) }
        for (hex in listOf("3208 0001 74 0007 7f 00", "3209 0001 74 0007 ffffffff", "9003 0001 05", "2004 0000 01 7e", "2006 0000 03 21 0000", "f000")) {
            assertFailsWith<IOException>(hex) { read(bytes(hex), true) }
        }
    }

    @ParameterizedTest
    @ValueSource(
        strings = [
            "30 ffffffff7f", "30 ffffff7f", "32 05 0001 2b 0001", "32 05 0001 74 0000", "34 05 0001 74 0001", "36 05 0001 74 0001", "30 02 0000",
            "30 03 0002 74", "30 03 0001 ff", "30 01 00", "40 01 01", "40 03 000101", "41 02 0001", "20 02 0200", "20 01 00", "d0 01 00", "10 00",
            "00 00", "f0 00", "40 02 0000", "d0 81808001", "30 03 0001 00",
        ],
    )
    fun `what no broker may send ends the connection`(hex: String) {
        assertFailsWith<ProtocolException> { read(bytes(hex)) }
    }

    @Test
    fun `a payload that is larger than its topic may have is read past`() {
        val stream = DataInputStream((Packets.publish("a", 7, 40_000, retain = false, again = false, is5 = false) + ByteArray(40_000) + bytes("d000")).inputStream())
        assertEquals(Packet.TooLarge("a", 40_000, 7), readPacket(stream) { topic -> if (topic == "a") 39_999 else 0 })
        assertEquals(Packet.PingResp, readPacket(stream))
    }

    @Test
    fun `only so much is read before it is handled`() {
        val room = Room(100)
        room.take(150) { true } // one alone may be larger
        room.take(10) { false }
        val waiting = kotlin.concurrent.thread { room.take(50) { true } }
        waiting.join(300)
        assertTrue(waiting.isAlive)
        room.give(150)
        waiting.join(5_000)
        assertTrue(!waiting.isAlive)
    }

    @Test
    fun `a packet that breaks off is an end of file`() {
        assertFailsWith<EOFException> { read(bytes("30 05 0001")) }
        assertFailsWith<EOFException> { read(bytes("")) }
    }

    @Test
    fun `changed packets are read or refused`() {
        for (is5 in listOf(false, true)) changedPackets(Random(5), is5)
    }

    private fun changedPackets(random: Random, is5: Boolean) {
        val publication = Packets.publish("a/b", 3, 4, retain = true, again = true, is5) + ByteArray(4)
        val answers = if (is5) listOf("200800000522000a2100", "900400010001", "e00100") else listOf("20020000", "9003000101")
        val seeds = listOf(publication, Packets.pubAck(9)) + answers.map(::bytes)
        var refused = 0
        repeat(100_000) {
            val packet = seeds[it % seeds.size].copyOf()
            repeat(1 + random.nextInt(3)) { packet[random.nextInt(packet.size)] = random.nextInt(256).toByte() }
            try {
                read(packet, is5)
            } catch (_: IOException) {
                refused++
            }
        }
        assertTrue(refused in 50_000..99_999, "$refused")
    }

    @Test
    fun `pauses double up to a minute and are never the same`() {
        val pause = Backoff(Random(1))
        val drawn = List(12) { pause.nextMs() }
        for ((i, ms) in drawn.withIndex()) {
            val middle = minOf(1000L shl i, 60_000L)
            assertTrue(ms in middle / 2..middle * 3 / 2)
        }
        assertEquals(drawn.size, drawn.toSet().size)
        pause.reset()
        assertTrue(pause.nextMs() <= 1500)
    }
}
