package io.shoal.core

import io.shoal.core.wire.Acknowledge
import io.shoal.core.wire.AggregatorStatus
import io.shoal.core.wire.Annotate
import io.shoal.core.wire.CheckIn
import io.shoal.core.wire.Decline
import io.shoal.core.wire.Evaluate
import io.shoal.core.wire.Fetch
import io.shoal.core.wire.Finish
import io.shoal.core.wire.Message
import io.shoal.core.wire.Plan
import io.shoal.core.wire.PublicKey
import io.shoal.core.wire.Refuse
import io.shoal.core.wire.Topics
import io.shoal.core.wire.Train
import io.shoal.core.wire.decode
import io.shoal.core.wire.decodeUpdate
import io.shoal.core.wire.digest
import io.shoal.core.wire.encode
import org.junit.jupiter.api.io.TempDir
import java.io.File
import kotlin.test.Test
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertNotNull
import kotlin.test.assertNull
import kotlin.test.assertTrue

class AgentTest {
    @TempDir
    lateinit var folder: File

    private val topics = Topics("f")

    /** The broker and the aggregator's side: what the device published, and a hand to deliver to it. */
    private class FakeLink : Link {
        val published = ArrayList<Pair<String, ByteArray>>()
        val subscribed = LinkedHashSet<String>()

        override fun subscribe(topics: Collection<String>) {
            subscribed += topics
        }

        override fun unsubscribe(topics: Collection<String>) {
            subscribed -= topics.toSet()
        }

        override fun publish(topic: String, payload: ByteArray, retain: Boolean) {
            published += topic to payload
        }

        override fun receive(timeoutMs: Long): LinkEvent? = null

        override fun close() = Unit
    }

    private inner class Device(storage: Storage = FolderStorage(folder), key: PublicKey? = Fixture.key) {
        val link = FakeLink()
        var nowS = 0.0
        val loader = FakeLoader()
        val agent = Agent("phone", topics, link, Fixture.windows, storage, loader, key, clock = { nowS }, noise = { 0.25 })

        fun up() = apply { agent.handle(LinkUp) }

        fun deliver(topic: String, message: Message) = agent.handle(Delivery(topic, encode(message)))

        fun plan(plan: Plan = Fixture.plan()) = deliver(topics.device("phone", "plan"), plan)

        fun reply(message: Message) = deliver(topics.device("phone", "reply"), message)

        /** Delivers the blobs that it asks for, as retained publications. */
        fun offer() {
            for (payload in listOf(Fixture.payload, Fixture.model)) {
                if (topics.blob(digest(payload)) in link.subscribed) agent.handle(Delivery(topics.blob(digest(payload)), payload))
            }
        }

        fun sent(kind: String): List<ByteArray> {
            val topic = topics.device("phone", kind)
            return link.published.filter { it.first == topic }.map { it.second }.also { link.published.removeAll { it.first == topic } }
        }

        fun after(seconds: Double) {
            nowS += seconds
            agent.tick()
        }
    }

    @Test
    fun `a round`() {
        val device = Device().up()
        assertEquals(41, decode<CheckIn>(device.sent("check-in").single()).numTrain)
        device.plan()
        device.offer()
        val (update, tensors) = decodeUpdate(device.sent("update").single())
        assertEquals(Pair(1L, 5L), Pair(update.round, update.numSteps))
        assertEquals(setOf("delta/w", "delta/b", "statistic/n.running_mean", "statistic/n.running_var"), tensors.keys)
        assertTrue(update.bytesReceived > Fixture.payload.size)
        device.reply(Acknowledge("run", 1))
        assertEquals(1, device.agent.session.answered)
        assertNull(FolderStorage(folder).update())
        assertEquals(false, device.agent.waiting)
    }

    @Test
    fun `an update is kept and sent again until it is acknowledged`() {
        val device = Device().up()
        device.plan()
        device.offer()
        val first = device.sent("update").single()
        device.after(10.0)
        assertContentEquals(first, device.sent("update").single())
        device.after(10.0)
        assertEquals(0, device.sent("update").size, "the pause has doubled")
        device.deliver(topics.aggregator, AggregatorStatus(true, "new boot"))
        assertContentEquals(first, device.sent("update").single())
        val again = Device().up()
        assertContentEquals(first, again.sent("update").first())
        again.reply(Acknowledge("run", 1))
        again.after(10_000.0)
        assertEquals(0, again.sent("update").size)
    }

    @Test
    fun `a plan that a restart interrupted is taken up`() {
        Device().up().plan()
        val again = Device().up()
        again.offer()
        assertEquals(1, again.sent("update").size)
    }

    @Test
    fun `a missing blob is asked for and one with another hash ignored`() {
        val device = Device().up()
        device.plan()
        device.after(10.0)
        assertEquals(setOf(digest(Fixture.payload), digest(Fixture.model)), device.sent("fetch").map { decode<Fetch>(it).digest }.toSet())
        device.agent.handle(Delivery(topics.blob(digest(Fixture.payload)), byteArrayOf(1)))
        assertNull(FolderStorage(folder).blob(digest(Fixture.payload)))
    }

    @Test
    fun `a blob of a plan that was overtaken is not waited for`() {
        val device = Device().up()
        device.plan(Fixture.plan(1).copy(model = "9".repeat(64)))
        device.plan(Fixture.plan(2))
        device.offer()
        assertEquals(listOf(2L), device.sent("update").map { decodeUpdate(it).first.round })
    }

    @Test
    fun `a plan that cannot be carried out is declined`() {
        val device = Device(key = Fixture.otherKey).up()
        device.plan()
        device.offer()
        assertTrue("not made with the trusted key" in decode<Decline>(device.sent("decline").single()).detail)
        assertNull(device.agent.session.plan)
        FolderStorage(folder).save(Session(versions = mapOf("fake" to 4)))
        val other = Device().up()
        other.plan(Fixture.plan(verbs = listOf(Annotate("none", "x"))))
        other.offer()
        assertTrue("version 3 offered, version 4" in decode<Decline>(other.sent("decline").single()).detail)
    }

    @Test
    fun `a refused update is dropped`() {
        val device = Device().up()
        device.plan()
        device.offer()
        device.reply(Refuse("malformed", "x", about = "check-in"))
        assertNotNull(device.agent.session.pending)
        device.reply(Refuse("too-large", "x", about = "update"))
        assertNull(device.agent.session.pending)
        assertNull(FolderStorage(folder).update())
    }

    @Test
    fun `garbage changes nothing`() {
        val device = Device().up()
        val before = device.agent.session
        for (topic in listOf(topics.device("phone", "plan"), topics.device("phone", "reply"), topics.aggregator, "other", topics.blob("x"))) {
            device.agent.handle(Delivery(topic, byteArrayOf(-1, 0, 3)))
        }
        device.plan(Fixture.plan().copy(deviceId = "another"))
        assertEquals(before, device.agent.session)
    }

    @Test
    fun `the last run's model predicts`() {
        val device = Device().up()
        val phone = { Predictor(FolderStorage(folder), FakeLoader(), Fixture.windows, Fixture.key) }
        assertFailsWith<ConfigException> { phone().predict(Fixture.windows.testX) }
        device.plan(Fixture.plan(verbs = listOf(Evaluate())))
        device.offer()
        device.reply(Acknowledge("run", 1))
        device.reply(Finish("run", digest(Fixture.payload), digest(Fixture.model)))
        assertEquals(listOf(19, 2), phone().use { it.predict(Fixture.windows.testX) }.shape)
    }

    /** Ends the process, as it were, at its write number [at], before or after it took place. */
    private class Killed : Error()

    private class Mortal(private val storage: Storage, private val at: Int, private val after: Boolean) : Storage by storage {
        private var writes = 0

        override fun save(session: Session) = write { storage.save(session) }

        override fun putBlob(digest: String, payload: ByteArray) = write { storage.putBlob(digest, payload) }

        override fun keepBlobs(digests: Set<String>) = write { storage.keepBlobs(digests) }

        override fun putUpdate(runId: String, round: Long, payload: ByteArray, private: Tensors) =
            write { storage.putUpdate(runId, round, payload, private) }

        override fun dropUpdate() = write { storage.dropUpdate() }

        private fun write(action: () -> Unit) {
            writes++
            if (writes == at && !after) throw Killed()
            action()
            if (writes == at) throw Killed()
        }
    }

    @Test
    fun `a device that dies at any write goes on and is counted once`() {
        val whole = twoRounds(File(folder, "whole"), 0, false)
        assertEquals(2, whole.size)
        for (at in 1..16) for (after in listOf(false, true)) {
            val counted = twoRounds(File(folder, "$at-$after"), at, after)
            assertEquals(whole.keys, counted.keys)
            for ((round, payload) in whole) {
                assertEquals(decodeUpdate(payload).second, decodeUpdate(counted.getValue(round)).second, "round $round, killed at $at $after")
            }
        }
    }

    /** Two rounds with an aggregator that counts each round's first update and acknowledges equal ones; what it counted. */
    private fun twoRounds(folder: File, killAt: Int, after: Boolean): Map<Long, ByteArray> {
        val counted = HashMap<Long, ByteArray>()
        var device = Device(Mortal(FolderStorage(folder), killAt, after))
        var restarts = 0
        for (round in 1L..2L) {
            val plan = Fixture.plan(round, verbs = listOf(Evaluate(), Train(8, 2)))
            while (device.agent.session.answered < round) {
                try {
                    device.up()
                    device.plan(plan)
                    device.offer()
                    for (payload in device.sent("update")) {
                        val number = decodeUpdate(payload).first.round
                        val known = counted.getOrPut(number) { payload }
                        assertContentEquals(known, payload, "another update of the same round")
                        device.reply(Acknowledge("run", number))
                    }
                } catch (_: Killed) {
                    check(++restarts == 1)
                    device = Device(FolderStorage(folder))
                }
            }
        }
        return counted
    }
}
