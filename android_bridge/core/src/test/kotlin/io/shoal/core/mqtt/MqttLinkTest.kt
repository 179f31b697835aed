package io.shoal.core.mqtt

import io.shoal.core.BrokerAddress
import io.shoal.core.ConfigException
import io.shoal.core.Delivery
import io.shoal.core.LimitExceededException
import io.shoal.core.LinkDown
import io.shoal.core.LinkEvent
import io.shoal.core.LinkException
import io.shoal.core.LinkUp
import io.shoal.core.TlsFiles
import io.shoal.core.Will
import org.junit.jupiter.api.AfterEach
import org.junit.jupiter.api.io.TempDir
import java.io.File
import java.net.InetAddress
import java.net.ServerSocket
import java.net.SocketException
import java.util.Random
import javax.net.ssl.SSLContext
import kotlin.concurrent.thread
import kotlin.test.Test
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertIs
import kotlin.test.assertNull
import kotlin.test.assertTrue

/** The link with a real Mosquitto. */
class MqttLinkTest {
    @TempDir
    lateinit var folder: File

    private val broker by lazy { Mosquitto(folder) }
    private val open = ArrayList<MqttLink>()

    @AfterEach
    fun stop() {
        open.forEach { it.vanish() }
        broker.close()
    }

    private fun connect(id: String, will: Will? = null, keepAliveS: Int = 30): MqttLink =
        MqttLink.connect(BrokerAddress("127.0.0.1", broker.port), id, will, keepAliveS = keepAliveS).also { open += it }

    private fun deliveries(link: MqttLink, count: Int, patienceMs: Long = 10_000): List<Pair<String, String>> {
        val deliveries = ArrayList<Pair<String, String>>()
        val endNs = System.nanoTime() + patienceMs * 1_000_000
        while (deliveries.size < count && System.nanoTime() < endNs) {
            (link.receive(50) as? Delivery)?.let { deliveries += it.topic to it.payload.decodeToString() }
        }
        return deliveries
    }

    /** Read pending events, so that subscriptions are certain to be in place. */
    private fun settle(vararg links: MqttLink) {
        for (link in links) while (link.receive(200) != null) continue
    }

    private inline fun <reified T : LinkEvent> await(link: MqttLink): T {
        val endNs = System.nanoTime() + 20_000_000_000
        while (System.nanoTime() < endNs) (link.receive(100) as? T)?.let { return it }
        throw AssertionError("no ${T::class.java.simpleName} came")
    }

    @Test
    fun `publications reach subscribers in order and retained ones later subscribers`() {
        val (one, sender) = Pair(connect("one"), connect("sender"))
        assertIs<LinkUp>(one.receive(5_000))
        one.subscribe(listOf("t/+/x", "u"))
        settle(one)
        repeat(50) { sender.publish("t/$it/x", "$it".toByteArray()) }
        assertEquals((0 until 50).map { "t/$it/x" to "$it" }, deliveries(one, 50))
        sender.publish("u", "kept".toByteArray(), retain = true)
        assertEquals(listOf("u" to "kept"), deliveries(one, 1))
        val later = connect("later").apply { subscribe(listOf("u")) }
        assertEquals(listOf("u" to "kept"), deliveries(later, 1))
        one.unsubscribe(listOf("u"))
        one.publish("t/done/x", byteArrayOf()) // the broker takes what comes on one connection in its order
        assertEquals(listOf("t/done/x" to ""), deliveries(one, 1))
        sender.publish("u", byteArrayOf(), retain = true)
        assertEquals(emptyList(), deliveries(one, 1, 300))
    }

    @Test
    fun `large payloads arrive unchanged and larger ones are refused`() {
        val (receiver, sender) = Pair(connect("receiver").apply { subscribe(listOf("big")) }, connect("sender"))
        settle(receiver)
        val payload = ByteArray(48 * 1024 * 1024).also { Random(1).nextBytes(it) }
        sender.publish("big", payload)
        assertContentEquals(payload, await<Delivery>(receiver).payload)
        assertFailsWith<LimitExceededException> { sender.publish("big", ByteArray(MAX_PAYLOAD + 1)) }
    }

    @Test
    fun `the session keeps what came while away`() {
        connect("away").apply {
            subscribe(listOf("kept/#"))
            settle(this)
            close()
        }
        connect("sender").apply { publish("kept/1", "while away".toByteArray()) }.close()
        assertEquals(listOf("kept/1" to "while away"), deliveries(connect("away"), 1))
    }

    @Test
    fun `what was not handled before a crash comes again`() {
        val (first, sender) = Pair(connect("phone"), connect("sender"))
        first.subscribe(listOf("plan"))
        settle(first)
        sender.publish("plan", "1".toByteArray())
        sender.publish("plan", "2".toByteArray())
        assertEquals(listOf("plan" to "1"), deliveries(first, 1))
        first.vanish() // while it handled the first
        assertEquals(listOf("plan" to "1", "plan" to "2"), deliveries(connect("phone"), 2))
    }

    @Test
    fun `the will is published when a client vanishes and not after close`() {
        val watcher = connect("watcher").apply { subscribe(listOf("will/+")) }
        settle(watcher)
        connect("polite", Will("will/polite", "gone".toByteArray())).close()
        connect("mortal", Will("will/mortal", "gone".toByteArray())).vanish()
        assertEquals(listOf("will/mortal" to "gone"), deliveries(watcher, 2, 2_000))
        val later = connect("later").apply { subscribe(listOf("will/+")) }
        assertEquals(listOf("will/mortal" to "gone"), deliveries(later, 1))
    }

    @Test
    fun `a lost connection comes back with its subscriptions and sends what was queued`() {
        val (link, other) = Pair(connect("a"), connect("b"))
        link.subscribe(listOf("to a"))
        other.subscribe(listOf("to b"))
        settle(link, other)
        link.interrupt()
        await<LinkDown>(link)
        link.publish("to b", "queued".toByteArray())
        link.publish("to b", "queued".toByteArray())
        await<LinkUp>(link)
        assertEquals(listOf("to b" to "queued"), deliveries(other, 2, 1_000))
        other.publish("to a", "back".toByteArray())
        assertEquals(listOf("to a" to "back"), deliveries(link, 1))
    }

    @Test
    fun `a broker that restarts finds its clients again`() {
        val (link, other) = Pair(connect("a"), connect("b"))
        link.subscribe(listOf("to a"))
        settle(link, other)
        broker.stop()
        await<LinkDown>(link)
        other.publish("to a", "while the broker was down".toByteArray())
        broker.start()
        assertEquals(listOf("to a" to "while the broker was down"), deliveries(link, 1, 20_000))
    }

    @Test
    fun `a link that only listens stays alive`() {
        val (link, sender) = Pair(connect("a", keepAliveS = 2), connect("b"))
        link.subscribe(listOf("x"))
        settle(link)
        Thread.sleep(4_000)
        assertNull(link.receive(0))
        sender.publish("x", "still here".toByteArray())
        assertEquals(listOf("x" to "still here"), deliveries(link, 1))
    }

    @Test
    fun `no broker is one clear error`() {
        val port = Mosquitto.freePort()
        val error = assertFailsWith<LinkException> { MqttLink.connect(BrokerAddress("127.0.0.1", port), "a", waitMs = 300) }
        assertTrue("mqtt://127.0.0.1:$port: no connection" in error.message!!)
    }

    /** Return the client's bytes to a server that answers a connection with these bytes. */
    private fun answering(vararg answers: ByteArray): ServerSocket = ServerSocket(0, 9, InetAddress.getLoopbackAddress()).also { server ->
        thread(isDaemon = true) {
            while (true) {
                val socket = try {
                    server.accept()
                } catch (_: SocketException) {
                    break // the test is over
                }
                answers.forEach { socket.getOutputStream().write(it) }
                thread(isDaemon = true) { while (socket.getInputStream().read() >= 0) continue }
            }
        }
    }

    private val accepted = byteArrayOf(0x20, 3, 0, 0, 0)

    @Test
    fun `a refusal is one clear error at once`() {
        answering(byteArrayOf(0x20, 2, 0, 5)).use { server ->
            val address = BrokerAddress("127.0.0.1", server.localPort)
            val error = assertFailsWith<LinkException> { MqttLink.connect(address, "a", waitMs = 60_000) }
            assertTrue("not authorized" in error.message!!)
        }
    }

    @Test
    fun `a malformed packet ends the connection`() {
        answering(accepted, byteArrayOf(0x36, 2, 0, 0)).use { server ->
            val link = MqttLink.connect(BrokerAddress("127.0.0.1", server.localPort), "a").also { open += it }
            assertTrue("QoS 3" in await<LinkDown>(link).reason)
        }
    }

    @Test
    fun `what is thrown while reading ends the connection and not the process`() {
        Mosquitto(File(folder, "b").apply { mkdirs() }).use { other ->
            var thrown = 0
            val address = BrokerAddress("127.0.0.1", other.port)
            val failing = { topic: String -> if (topic == "bad" && thrown++ == 0) throw OutOfMemoryError("pretended") else 100 }
            val link = MqttLink.connect(address, "a", limit = failing).also { open += it }
            val sender = MqttLink.connect(address, "b").also { open += it }
            link.subscribe(listOf("bad", "good"))
            settle(link)
            sender.publish("bad", ByteArray(101))
            assertTrue("pretended" in await<LinkDown>(link).reason)
            await<LinkUp>(link)
            sender.publish("good", "after it".toByteArray()) // what was too large was acknowledged, and does not come again
            assertEquals(listOf("good" to "after it"), deliveries(link, 1))
            assertEquals(2, thrown)
        }
    }

    @Test
    fun `a broker that says nothing is left`() {
        answering(accepted).use { server ->
            val link = MqttLink.connect(BrokerAddress("127.0.0.1", server.localPort), "a", keepAliveS = 1).also { open += it }
            await<LinkDown>(link)
        }
    }

    @Test
    fun `an unacknowledged publication is sent again with DUP`() {
        val received = java.io.ByteArrayOutputStream()
        ServerSocket(0, 9, InetAddress.getLoopbackAddress()).use { server ->
            val link = thread(isDaemon = true) {
                repeat(2) { connection ->
                    val socket = server.accept()
                    val input = java.io.DataInputStream(socket.getInputStream())
                    fun packet(): ByteArray = byteArrayOf(input.readByte()) + ByteArray(input.readUnsignedByte()).also(input::readFully)
                    packet()
                    socket.getOutputStream().write(accepted)
                    received.write(packet())
                    if (connection == 0) socket.close()
                }
            }.let { MqttLink.connect(BrokerAddress("127.0.0.1", server.localPort), "a").also { open += it } }
            link.publish("t", byteArrayOf(9))
            await<LinkDown>(link)
            await<LinkUp>(link)
            Thread.sleep(200)
        }
        val sent = byteArrayOf(0x32, 0, 1, 't'.code.toByte(), 0, 1, 0, 9)
        assertContentEquals(sent + sent.copyOf().also { it[0] = 0x3a }, received.toByteArray())
    }

    @Test
    fun `TLS with a private authority`() {
        val certificates = Certificates(File(folder, "tls"))
        val others = Certificates(File(folder, "others"), authorityOnly = true)
        fun tls(port: Int, context: SSLContext, host: String = "localhost", waitMs: Long = 3_000) =
            MqttLink.connect(BrokerAddress(host, port, tls = context), "phone", waitMs = waitMs).also { open += it }
        Mosquitto(File(folder, "b1").apply { mkdirs() }, certificates).use { broker ->
            val link = tls(broker.tlsPort, TlsFiles.context(certificates.authority)).apply { subscribe(listOf("x")) }
            link.publish("x", ByteArray(300_000) { 'x'.code.toByte() })
            assertEquals(300_000, deliveries(link, 1).single().second.length)
            val wrongAuthority = assertFailsWith<LinkException> { tls(broker.tlsPort, TlsFiles.context(others.authority), waitMs = 60_000) }
            assertTrue("TLS failed" in wrongAuthority.message!!)
            assertFailsWith<LinkException> { tls(broker.tlsPort, SSLContext.getDefault(), waitMs = 60_000) }
            val trusting = TlsFiles.context(certificates.authority)
            val wrongHost = assertFailsWith<LinkException> { tls(broker.tlsPort, trusting, "127.0.0.1", 60_000) }
            assertTrue("TLS failed" in wrongHost.message!!)
        }
        Mosquitto(File(folder, "b2").apply { mkdirs() }, certificates, requireCertificate = true).use { broker ->
            assertFailsWith<LinkException> { tls(broker.tlsPort, TlsFiles.context(certificates.authority), waitMs = 500) }
            val deviceContext = TlsFiles.context(certificates.authority, certificates.device, certificates.deviceKey)
            assertIs<LinkUp>(tls(broker.tlsPort, deviceContext).receive(5_000))
        }
        assertFailsWith<ConfigException> { TlsFiles.context(File(folder, "none.pem")) }
        assertFailsWith<ConfigException> { TlsFiles.context(certificates.authority, certificates.device) }
        assertFailsWith<ConfigException> { TlsFiles.context(certificates.authority, certificates.device, certificates.authority) }
    }
}
