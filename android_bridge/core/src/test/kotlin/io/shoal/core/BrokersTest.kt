package io.shoal.core

import io.shoal.core.mqtt.Mosquitto
import io.shoal.core.mqtt.MqttLink
import io.shoal.core.mqtt.Packet
import io.shoal.core.mqtt.readPacket
import io.shoal.core.wire.Fields
import io.shoal.core.wire.JsonArray
import io.shoal.core.wire.JsonObject
import io.shoal.core.wire.PacketLimit
import io.shoal.core.wire.cut
import io.shoal.core.wire.parseJson
import org.junit.jupiter.api.io.TempDir
import org.junit.jupiter.params.ParameterizedTest
import org.junit.jupiter.params.provider.ValueSource
import java.io.DataInputStream
import java.io.File
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertFalse
import kotlin.test.assertIs
import kotlin.test.assertNotNull
import kotlin.test.assertTrue

/** Brokers as companies have them (`wire/vectors/brokers.json`), and a Mosquitto with their limits. */
class BrokersTest {
    @TempDir
    lateinit var folder: File

    private val vectors = (parseJson(File(repository, "wire/vectors/brokers.json").readBytes()) as JsonObject).fields

    private fun cases(name: String) = (vectors.getValue(name) as JsonArray).items.map { it to Fields(it, name) }

    private fun number(case: Fields, name: String): Int? = case.intOrNull(name, 0L..Int.MAX_VALUE)?.toInt()

    @Test
    fun `addresses are those of every implementation`() {
        for ((value, case) in cases("addresses")) {
            val url = case.string("address")
            if ("refused" in (value as JsonObject).fields) {
                val error = assertFailsWith<ConfigException>(url) { BrokerAddress.parse(url) }
                if ("?secret" !in url || '@' in url) assertFalse("cret" in error.message!!, error.message)
                continue
            }
            val read = BrokerAddress.parse(url)
            assertEquals(
                listOf(case.string("host"), number(case, "port"), case.string("user"), case.string("password"), case.strings("versions"), case.string("shown")),
                listOf(read.host, read.port, read.username.orEmpty(), read.password.orEmpty(), read.versions, read.toString()),
            )
            assertEquals(case.bool("tls"), read.tls != null)
        }
    }

    @Test
    fun `answers are read as by every implementation`() {
        for ((_, case) in cases("answers")) {
            val packet = case.string("packet").chunked(2).map { it.toInt(16).toByte() }.toByteArray()
            val limits = assertIs<Packet.ConnAck>(readPacket(DataInputStream(packet.inputStream()), true)).limits
            assertEquals(case.string("objection"), limits.objection())
            assertEquals(number(case, "max_packet"), limits.maxPacket ?: PacketLimit.MQTT.bytes)
        }
    }

    @Test
    fun `pieces are those of every implementation`() {
        for ((_, case) in cases("pieces")) {
            val (bytes, most) = Pair(number(case, "num_bytes")!!.toLong(), number(case, "max_packet")!!)
            val limit = PacketLimit(most, "it does")
            if (number(case, "pieces") == null) {
                assertFailsWith<LimitExceededException> { cut(bytes, limit) { _, size -> ByteArray(size) } }
            } else {
                val pieces = cut(bytes, limit) { _, size -> ByteArray(size) }
                assertEquals(Pair(number(case, "piece_bytes"), number(case, "pieces")), Pair(pieces.pieceBytes.toInt(), pieces.pieces.size))
            }
        }
    }

    @Test
    fun `a user and a password stand in the address or beside it`() {
        val plain = BrokerAddress.parse("mqtt://h?max_packet=5000").login("me", "#?/@%")
        assertEquals(listOf("me", "#?/@%", 5000), listOf(plain.username, plain.password, plain.maxPacket))
        assertEquals("word", BrokerAddress.parse("mqtt://me@h").login(null, "word").password)
        assertEquals(null, BrokerAddress.parse("mqtt://h").login(null, null).username)
        assertFailsWith<ConfigException> { BrokerAddress.parse("mqtt://me:word@h").login("other", "x") }
        val error = assertFailsWith<ConfigException> { BrokerAddress.parse("mqtt://h").login(null, "word") }
        assertTrue("without a user" in error.message!!)
    }

    private fun broker(lines: String, test: (BrokerAddress) -> Unit) =
        Mosquitto(folder, added = lines).use { test(BrokerAddress("127.0.0.1", it.port)) }

    private fun link(address: BrokerAddress, log: Log = Log.SILENT, will: Will? = null) = MqttLink.connect(address, "f.d", will, waitMs = 5_000, log = log)

    private fun deliveries(link: MqttLink, count: Int): List<ByteArray> {
        val payloads = ArrayList<ByteArray>()
        val endNs = System.nanoTime() + 15_000_000_000
        while (payloads.size < count && System.nanoTime() < endNs) (link.receive(50) as? Delivery)?.let { payloads += it.payload }
        return payloads
    }

    @ParameterizedTest
    @ValueSource(ints = [131_072, 65_536, 20_000, 8192, 4096])
    fun `a larger packet is refused and the connection stays`(most: Int) = broker("max_packet_size $most\n") { address ->
        link(address).use { link ->
            link.subscribe(listOf("t"))
            val error = assertFailsWith<LimitExceededException> { link.publish("t", ByteArray(most - 6)) }
            assertEquals("broker $address says in its CONNACK that packets have at most $most bytes, and a message on t has ${most + 5}", error.message)
            link.publish("t", ByteArray(most - 16))
            assertEquals(most - 16, deliveries(link, 1).single().size)
        }
    }

    @ParameterizedTest
    @ValueSource(
        strings = [
            "retain_available false|retains no messages", "max_qos 0|QoS", "max_packet_size 1000|packets of at most 1000 bytes, and Shoal needs 4096",
            "clientid_prefixes company-|client id",
        ],
    )
    fun `what a broker does not offer ends the client`(case: String) = broker(case.substringBefore("|") + "\n") { address ->
        for (will in listOf(null, Will("w", byteArrayOf(1)))) {
            val error = assertFailsWith<LinkException> { link(address, will = will) }
            assertTrue(case.substringAfter("|") in error.message!!, error.message)
            assertTrue("client 'f.d'" in error.message!!, error.message)
        }
    }

    @Test
    fun `no more messages are in flight than the broker takes`() = broker("max_inflight_messages 2\nmax_keepalive 12\n") { address ->
        link(address).use { link ->
            link.subscribe(listOf("n"))
            repeat(40) { link.publish("n", byteArrayOf(it.toByte())) }
            assertEquals((0 until 40).toList(), deliveries(link, 40).map { it[0].toInt() })
            link.interrupt()
            repeat(40) { link.publish("n", byteArrayOf((40 + it).toByte())) }
            val again = ArrayList<Int>() // the last ones before the interruption may come twice
            while (again.lastOrNull() != 79) again += deliveries(link, 1).single()[0].toInt()
            assertEquals((40 until 80).toList(), again.filter { it >= 40 })
        }
    }

    @Test
    fun `a denied publication is said`() {
        val rules = File(folder, "acl").apply { writeText("topic readwrite +\n") }
        val lines = ArrayList<String>()
        broker("acl_file $rules\n") { address ->
            link(address, Log { level, line -> synchronized(lines) { lines += "$level $line" } }).use { link ->
                link.subscribe(listOf("a"))
                link.publish("a/b", byteArrayOf(1))
                link.publish("a", byteArrayOf(2))
                assertEquals(1, deliveries(link, 1).size, "$lines")
            }
        }
        assertNotNull(lines.singleOrNull { it == "ERROR The broker denies a publication: topic=a/b code=135" }, "$lines")
    }

    @Test
    fun `an older version has a limit that the broker cannot name`() = broker("") { address ->
        val older = BrokerAddress(address.host, address.port, versions = listOf("3.1.1"))
        link(older).use { link ->
            assertEquals(131_072, link.limit.bytes)
            link.subscribe((0 until 20).map { "t/$it" })
            link.publish("t/19", ByteArray(100_000))
            assertEquals(100_000, deliveries(link, 1).single().size)
        }
        link(BrokerAddress(address.host, address.port, maxPacket = 5000)).use { assertEquals(5000, it.limit.bytes) }
    }
}
