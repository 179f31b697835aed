package io.shoal.core

import io.shoal.core.mqtt.Mosquitto
import io.shoal.core.mqtt.MqttLink
import io.shoal.core.wire.Acknowledge
import io.shoal.core.wire.AggregatorStatus
import io.shoal.core.wire.CheckIn
import io.shoal.core.wire.DeviceStatus
import io.shoal.core.wire.Plan
import io.shoal.core.wire.Topics
import io.shoal.core.wire.Train
import io.shoal.core.wire.decode
import io.shoal.core.wire.decodeUpdate
import io.shoal.core.wire.digest
import io.shoal.core.wire.encode
import org.junit.jupiter.api.AfterEach
import org.junit.jupiter.api.BeforeEach
import org.junit.jupiter.api.io.TempDir
import java.io.File
import java.util.concurrent.atomic.AtomicInteger
import kotlin.concurrent.thread
import kotlin.test.Test
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue

/** Complete jobs over a real Mosquitto, with the aggregator's side of the conversation. */
class PhoneTest {
    @TempDir
    lateinit var folder: File

    private val topics = Topics("f")
    private lateinit var broker: Mosquitto
    private lateinit var aggregator: MqttLink
    private val loader = FakeLoader()

    @BeforeEach
    fun start() {
        broker = Mosquitto(folder)
        aggregator = MqttLink.connect(address(), "f.aggregator")
        aggregator.subscribe(listOf("check-in", "status", "update", "decline", "fetch").map { "shoal/1/f/device/+/$it" })
        aggregator.publish(topics.aggregator, Fixture.signed(AggregatorStatus(true, "boot", 5, 1000.0)), retain = true)
        for (payload in listOf(Fixture.payload, Fixture.model)) aggregator.publish(topics.blob(digest(payload)), payload, retain = true)
    }

    @AfterEach
    fun stop() {
        if (::aggregator.isInitialized) aggregator.vanish()
        if (::broker.isInitialized) broker.close()
    }

    private fun address() = BrokerAddress("127.0.0.1", broker.port)

    private fun phone(loader: GraphLoader = this.loader) =
        Phone("phone", "f", address(), Fixture.windows, FolderStorage(File(folder, "state")), loader, Fixture.keys, noise = { 0.5 })

    private fun send(plan: Plan) = aggregator.publish(topics.device("phone", "plan"), Fixture.signed(plan))

    private fun acknowledge(update: ByteArray) =
        aggregator.publish(topics.device("phone", "reply"), Fixture.signed(Acknowledge("phone", digest(update))))

    /** Return the device's next message on a topic. */
    private fun sent(kind: String): ByteArray {
        val endNs = System.nanoTime() + 20_000_000_000
        while (System.nanoTime() < endNs) {
            val event = aggregator.receive(100)
            if (event is Delivery && event.topic == topics.device("phone", kind)) return event.payload
        }
        throw AssertionError("the device sent no $kind")
    }

    @Test
    fun `a job does what came since the last one and leaves`() {
        assertEquals(Phone.Outcome.IDLE, phone().job(idleMs = 500))
        assertEquals(41, decode<CheckIn>(sent("check-in")).numTrain)
        while (decode<DeviceStatus>(sent("status")).online) continue
        send(Fixture.plan())
        assertEquals(Phone.Outcome.UNFINISHED, phone().job(idleMs = 500, limitMs = 1_500))
        val update = sent("update")
        acknowledge(update)
        assertEquals(Phone.Outcome.IDLE, phone().job(idleMs = 700))
        assertContentEquals(update, sent("update"))
        assertTrue(loader.loaded.single().closed)
    }

    @Test
    fun `a job that is stopped within a training begins it anew in the next`() {
        val steps = AtomicInteger()
        val counting = object : GraphLoader by loader {
            override fun load(bundle: io.shoal.core.wire.Bundle): Graphs {
                val graphs = loader.load(bundle)
                return object : Graphs by graphs {
                    override fun run(graph: String, inputs: Tensors): Tensors = graphs.run(graph, inputs).also { steps.incrementAndGet() }
                }
            }
        }
        val plan = Fixture.plan(verbs = listOf(Train(8, epochs = 20)))
        phone().job(idleMs = 300)
        send(plan)
        assertEquals(Phone.Outcome.STOPPED, phone(counting).job(stop = { steps.get() >= 37 }))
        assertEquals(37, steps.get())
        assertEquals(plan, FolderStorage(File(folder, "state")).session().plan)
        phone().job(idleMs = 300, limitMs = 1_500)
        assertEquals(120, decodeUpdate(sent("update")).first.numSteps)
    }

    @Test
    fun `a job that is told to stop ends within a second, whatever it waits for`() {
        val deaf = java.net.ServerSocket(0, 50, java.net.InetAddress.getByName("127.0.0.1")) // it takes connections and never says anything
        val lost = object : Route by Route.System {
            override fun addresses(host: String) = Thread.sleep(30_000).let { Route.System.addresses(host) }
        }
        val never = BrokerAddress("127.0.0.1", deaf.localPort)
        val unanswered = BrokerAddress("127.0.0.1", broker.port, route = lost)
        aggregator.publish(topics.aggregator, Fixture.signed(AggregatorStatus(true, "boot", 5, 1000.0)), retain = true)
        for (address in listOf(never, unanswered, address())) {
            val (startedNs, stopAtNs) = System.nanoTime().let { it to it + 700_000_000 }
            val phone = Phone("phone", "f", address, Fixture.windows, FolderStorage(File(folder, "stopped")), loader, Fixture.keys, noise = { 0.5 })
            val outcome = phone.job(idleMs = 60_000, connectMs = 60_000) { System.nanoTime() >= stopAtNs }
            val tookMs = (System.nanoTime() - maxOf(startedNs, stopAtNs)) / 1_000_000
            assertEquals(Phone.Outcome.STOPPED, outcome)
            assertTrue(tookMs < 1_000, "$address: it ended after $tookMs ms")
        }
        deaf.close()
    }

    @Test
    fun `a withdrawal is confirmed by the aggregator alone, for these very bytes, and stays at the broker`() {
        val withdrawal = Withdrawal("phone", "f", address(), Fixture.keys)
        val answering = thread {
            val status = sent("status")
            aggregator.publish(topics.device("phone", "reply"), Fixture.signed(Acknowledge("phone", "a".repeat(64)))) // of something else
            aggregator.publish(topics.device("phone", "reply"), encode(Acknowledge("phone", digest(status)))) // of nobody with a key
            Thread.sleep(500)
            aggregator.publish(topics.device("phone", "reply"), Fixture.signed(Acknowledge("phone", digest(status))))
        }
        val startedNs = System.nanoTime()
        assertTrue(withdrawal.tell(answerMs = 20_000))
        assertTrue(System.nanoTime() - startedNs > 400_000_000)
        answering.join()
        assertTrue(!withdrawal.tell(answerMs = 300), "nobody answers")
        while (aggregator.receive(300) != null) continue
        val later = MqttLink.connect(address(), "later").apply { subscribe(listOf(topics.device("phone", "status"))) }
        val retained = generateSequence { later.receive(5_000) }.filterIsInstance<Delivery>().first()
        assertEquals(listOf(false, true), decode<DeviceStatus>(retained.payload).let { listOf(it.online, it.withdrawn.length == 32) })
        later.vanish()
    }

    @Test
    fun `a broker is reached at any of its addresses, by the route that was given`() {
        val opened = ArrayList<java.net.Socket>()
        val route = object : Route {
            override fun addresses(host: String) = listOf("127.0.0.3", "127.0.0.1").map { java.net.InetAddress.getByName(it) }

            override fun socket() = java.net.Socket().also { opened += it }
        }
        val address = BrokerAddress("broker.example", broker.port, route = route)
        val phone = Phone("phone", "f", address, Fixture.windows, FolderStorage(File(folder, "routed")), loader, Fixture.keys, noise = { 0.5 })
        assertEquals(Phone.Outcome.IDLE, phone.job(idleMs = 300))
        assertEquals(listOf("/127.0.0.3", "/127.0.0.1"), opened.map { it.inetAddress?.toString() ?: "/127.0.0.3" })
        val nowhere = BrokerAddress("broker.example", deadPort(), route = route)
        val error = assertFailsWith<LinkException> {
            Phone("phone", "f", nowhere, Fixture.windows, FolderStorage(File(folder, "none")), loader, Fixture.keys).job(connectMs = 300)
        }
        assertEquals(1, error.cause!!.suppressed.size, "what was wrong at the second address is told too")
    }

    private fun deadPort(): Int = java.net.ServerSocket(0).use { it.localPort }

    @Test
    fun `a phone without a trusted key has to be told that it is insecure`() {
        val none = { insecure: Boolean, log: Log ->
            Phone("p", "f", address(), Fixture.windows, FolderStorage(File(folder, "none")), loader, emptyList(), insecure, log = log)
        }
        assertFailsWith<ConfigException> { none(false, Log.SILENT) }
        val log = ArrayList<String>()
        none(true) { level, line -> log += "$level $line" }
        assertEquals("WARNING Insecure: without a trusted key, anybody who reaches the broker can give this device work", log.single())
    }

    @Test
    fun `a phone that keeps running goes through rounds and a broker that restarts`() {
        var stopping = false
        val running = thread { phone().run { stopping } }
        sent("check-in")
        for (round in 1L..3L) {
            send(Fixture.plan(round))
            do {
                val update = sent("update") // an earlier one may come again when the broker does
                val received = decodeUpdate(update).first.round
                assertTrue(received <= round)
                acknowledge(update)
            } while (received < round)
            if (round == 2L) {
                broker.stop()
                broker.start()
            }
        }
        val storage = FolderStorage(File(folder, "state"))
        val endNs = System.nanoTime() + 20_000_000_000
        fun isAnswered() = storage.session().let { it.plan?.round == 3L && it.stage == Stage.ANSWERED }
        while (!isAnswered() && System.nanoTime() < endNs) Thread.sleep(20)
        stopping = true
        running.join(10_000)
        assertTrue(isAnswered())
        while (decode<DeviceStatus>(sent("status")).online) continue
    }
}
