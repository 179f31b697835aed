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

/** Whole jobs over a real Mosquitto, with an aggregator's side of the conversation. */
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
        aggregator.subscribe(listOf("check-in", "status", "update", "decline", "fetch").map { "shoal/2/f/device/+/$it" })
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

    /** What the device wrote to a topic next. */
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
    fun `a phone without a trusted key has to be told that it is insecure`() {
        val none = { insecure: Boolean, log: Log ->
            Phone("p", "f", address(), Fixture.windows, FolderStorage(File(folder, "none")), loader, emptyList(), insecure, log = log)
        }
        assertFailsWith<ConfigException> { none(false, Log.SILENT) }
        val said = ArrayList<String>()
        none(true) { level, line -> said += "$level $line" }
        assertTrue("WARNING insecure" in said.single())
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
        fun done() = storage.session().let { it.plan?.round == 3L && it.stage == Stage.ANSWERED }
        while (!done() && System.nanoTime() < endNs) Thread.sleep(20)
        stopping = true
        running.join(10_000)
        assertTrue(done())
        while (decode<DeviceStatus>(sent("status")).online) continue
    }
}
