package io.shoal.core

import io.shoal.core.wire.Acknowledge
import io.shoal.core.wire.AggregatorStatus
import io.shoal.core.wire.Annotate
import io.shoal.core.wire.Bundle
import io.shoal.core.wire.Busy
import io.shoal.core.wire.CheckIn
import io.shoal.core.wire.DeclineReason
import io.shoal.core.wire.DeviceStatus
import io.shoal.core.wire.Evaluate
import io.shoal.core.wire.Fetch
import io.shoal.core.wire.Policy
import io.shoal.core.wire.Protect
import io.shoal.core.wire.PublicKey
import io.shoal.core.wire.Refuse
import io.shoal.core.wire.Train
import io.shoal.core.wire.Verb
import io.shoal.core.wire.decode
import io.shoal.core.wire.decodeUpdate
import io.shoal.core.wire.digest
import org.junit.jupiter.api.io.TempDir
import java.io.File
import kotlin.test.Test
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertNotNull
import kotlin.test.assertNull
import kotlin.test.assertTrue

class AgentTest {
    @TempDir
    lateinit var folder: File

    private fun storage() = FolderStorage(folder)

    private fun device(policy: Policy? = null, loader: GraphLoader = FakeLoader()) = FakeAggregator(storage(), policy = policy, loader = loader)

    @Test
    fun `a round`() {
        val device = device().up()
        val checkIn = decode<CheckIn>(device.sent("check-in").first())
        assertEquals(Pair(41L, null), Pair(checkIn.numTrain, checkIn.policy))
        device.plan()
        device.offer()
        val payload = device.sent("update").single()
        val (update, tensors) = decodeUpdate(payload)
        assertEquals(listOf(1L, 5L, 5L, 0L), listOf(update.round, update.epoch, update.numSteps, update.attempt))
        assertEquals(setOf("delta/w", "delta/b", "statistic/n.running_mean", "statistic/n.running_var"), tensors.keys)
        assertTrue(update.bytesReceived > Fixture.payload.size)
        device.reply(Acknowledge("phone", digest(payload)))
        assertEquals(Stage.ANSWERED, device.agent.session.stage)
        assertNull(storage().update())
        assertEquals(false, device.agent.waiting)
    }

    @Test
    fun `an update is kept and sent again until it is answered`() {
        val device = device().up()
        device.plan()
        device.offer()
        val first = device.sent("update").single()
        device.after(10.0)
        assertContentEquals(first, device.sent("update").single())
        device.after(10.0)
        assertEquals(0, device.sent("update").size, "the pause has doubled")
        device.status(1001.0, "new boot")
        assertContentEquals(first, device.sent("update").single())
        device.plan()
        assertContentEquals(first, device.sent("update").single())
        device.reply(Acknowledge("phone", "0".repeat(64)))
        val again = device().up()
        assertContentEquals(first, again.sent("update").first())
        again.reply(Acknowledge("phone", digest(first)))
        again.after(10_000.0)
        assertEquals(0, again.sent("update").size)
    }

    @Test
    fun `a busy aggregator gets the update after the time that it says`() {
        val device = device().up()
        device.plan()
        device.offer()
        val update = device.sent("update").single()
        device.reply(Busy("phone", digest(update), 100.0))
        device.after(99.0)
        assertEquals(0, device.sent("update").size)
        device.after(2.0)
        assertContentEquals(update, device.sent("update").single())
    }

    @Test
    fun `an update that was damaged on disk is made again`() {
        val device = device().up()
        device.plan()
        device.offer()
        val update = device.sent("update").single()
        File(folder, "update").apply { writeBytes(readBytes().also { it[200] = (it[200] + 1).toByte() }) }
        val again = device().up()
        again.work()
        assertEquals(decodeUpdate(update).second, decodeUpdate(again.sent("update").single()).second)
    }

    @Test
    fun `a plan that a restart interrupted is taken up`() {
        device().up().plan()
        val again = device().up()
        again.offer()
        assertEquals(1, again.sent("update").size)
    }

    @Test
    fun `a missing blob is asked for and one with another hash ignored`() {
        val device = device().up()
        device.plan()
        device.after(10.0)
        assertEquals(setOf(digest(Fixture.payload), digest(Fixture.model)), device.sent("fetch").map { decode<Fetch>(it).digest }.toSet())
        device.agent.handle(Delivery(device.topics.blob(digest(Fixture.payload)), byteArrayOf(1)))
        assertNull(storage().blob(digest(Fixture.payload)))
    }

    @Test
    fun `a blob that was damaged on disk is fetched again`() {
        val device = device().up()
        device.plan()
        device.offer()
        device.reply(Acknowledge("phone", digest(device.sent("update").single())))
        File(folder, "blobs/${digest(Fixture.model)}").writeBytes(ByteArray(9))
        device.plan(Fixture.plan(2))
        assertEquals(setOf(device.topics.blob(digest(Fixture.model))), device.link.subscribed.filter { "/blob/" in it }.toSet())
        device.offer()
        assertEquals(2, decodeUpdate(device.sent("update").single()).first.round)
    }

    @Test
    fun `a blob of a plan that was overtaken is not waited for`() {
        val device = device().up()
        device.plan(Fixture.plan(1).copy(model = "9".repeat(64)))
        device.plan(Fixture.plan(2))
        device.offer()
        assertEquals(listOf(2L), device.sent("update").map { decodeUpdate(it).first.round })
    }

    @Test
    fun `what a plan or its bundle does wrong is a decline`() {
        fun declined(number: Int, keys: List<PublicKey>, versions: Map<String, Long>, verb: Verb): String {
            val storage = FolderStorage(File(folder, "$number")).apply { save(Session(versions = versions)) }
            val device = FakeAggregator(storage, Fixture.keys)
            val foreign = FakeAggregator(storage, keys)
            val asked = if (keys === Fixture.keys) device else foreign
            asked.up()
            if (keys === Fixture.keys) asked.plan(Fixture.plan(verbs = listOf(verb))) else asked.plan()
            asked.offer()
            return asked.declines().joinToString { "${it.reason.text}: ${it.detail}" }
        }
        assertEquals("", declined(1, Fixture.otherKeys, emptyMap(), Train(8)), "a plan by a stranger is not even declined")
        assertTrue("bundle: bundle fake: version 3 offered, version 4" in declined(2, Fixture.keys, mapOf("fake" to 4), Evaluate()))
        assertTrue("failed: graph 'predict'" in declined(3, Fixture.keys, emptyMap(), Train(8, graph = "predict")))
        assertTrue("failed: plan: no graph 'none'" in declined(4, Fixture.keys, emptyMap(), Annotate("none", "x")))
        assertTrue("data: 1 training windows" in declined(5, Fixture.keys, emptyMap(), Train(8, holdout = 0.976)))
        assertTrue("policy: min_windows" in declined(6, Fixture.keys, emptyMap(), Train(8, holdout = 0.99)))
    }

    /** A loader that fails, or whose graphs do. */
    private class Failing(private val inLoad: Throwable? = null, private val inRun: Throwable? = null) : GraphLoader {
        override val runtime = "failing"

        override fun load(bundle: Bundle): Graphs {
            inLoad?.let { throw it }
            return object : Graphs by FakeGraphs() {
                override fun run(graph: String, inputs: Tensors): Tensors = throw inRun!!
            }
        }
    }

    @Test
    fun `whatever a runtime throws is a decline, and the next plan is taken`() {
        val thrown = listOf(
            OutOfMemoryError(), UnsatisfiedLinkError("no lib"), StackOverflowError(), NoClassDefFoundError(), IllegalStateException("x\ny"),
            NoSuchElementException(), AssertionError(), NegativeArraySizeException(), BundleException("bad"), DataException("odd"),
        )
        var round = 0L
        for (error in thrown) for (loader in listOf(Failing(inLoad = error), Failing(inRun = error))) {
            val device = device(loader = loader).up()
            device.plan(Fixture.plan(++round))
            device.offer()
            val reason = device.declines().single().reason
            assertEquals(mapOf("BundleException" to DeclineReason.BUNDLE, "DataException" to DeclineReason.DATA)[error.javaClass.simpleName] ?: DeclineReason.FAILED, reason)
            assertEquals(Pair(Stage.DECLINED, 0), device.agent.session.let { Pair(it.stage, it.tries) })
        }
        val well = device().up()
        well.plan(Fixture.plan(round + 1))
        assertEquals(1, well.sent("update").size)
    }

    @Test
    fun `work that ends the client five times is not started again`() {
        var started = 0
        for (start in 1..7) {
            val deadly = object : GraphLoader by FakeLoader() {
                override fun load(bundle: Bundle): Graphs = throw Stopped().also { started++ }
            }
            val device = device(loader = deadly).up()
            if (start == 1) device.plan()
            try {
                device.offer()
            } catch (_: Stopped) {
                storage().save(device.agent.session.copy(tries = device.agent.session.tries + 1)) // as if the process had died instead
            }
            val declines = device.declines()
            assertEquals(if (start == 6) listOf(DeclineReason.QUARANTINED) else emptyList(), declines.map { it.reason }, "start $start")
        }
        assertEquals(5, started)
        val well = device().up()
        well.plan()
        assertEquals(DeclineReason.QUARANTINED, well.declines().single().reason)
        well.plan(Fixture.plan(2))
        assertEquals(1, well.sent("update").size)
    }

    @Test
    fun `a job that is stopped in good order does not count`() {
        var steps = 0
        for (start in 1..8) {
            val device = FakeAggregator(storage(), stop = { steps++ % 4 == 3 }).up()
            if (start == 1) device.plan()
            try {
                device.offer()
            } catch (_: Stopped) {
                continue
            } finally {
                assertTrue(storage().session().tries == 0)
            }
        }
        val device = device().up()
        device.work()
        assertEquals(1, device.sent("update").size)
    }

    @Test
    fun `an earlier epoch gets the proof of the later one`() {
        val device = device().up()
        val taken = Fixture.plan(3, epoch = 7)
        device.plan(taken)
        device.plan(Fixture.plan(4, epoch = 6))
        val decline = device.declines().single()
        assertEquals(listOf(DeclineReason.STALE, 6L, 4L), listOf(decline.reason, decline.epoch, decline.round))
        assertEquals(Fixture.signed(taken).decodeToString(), decline.proof)
        assertEquals(taken, storage().session().plan)
    }

    @Test
    fun `a plan whose deadline is over is declined, by the aggregator's clock alone`() {
        val device = device()
        device.clock.nowS = 5e9.toInt().toDouble() // the device's own clock is far ahead
        device.up(status = false)
        device.clock.nowS = 0.0
        device.plan(Fixture.plan(deadlineAtS = 2000.0))
        device.offer()
        assertEquals(0, device.sent("update").size, "it waits for the aggregator's status")
        device.status(atS = 1990.0)
        device.clock.nowS = 1e9
        device.work()
        assertEquals(1, device.sent("update").size)
        device.clock.steadyS += 11.0
        device.plan(Fixture.plan(2, deadlineAtS = 2000.0))
        assertEquals(DeclineReason.EXPIRED, device.declines().single().reason)
        device.plan(Fixture.plan(3, deadlineAtS = 2010.0).copy(model = "9".repeat(64)))
        device.after(8.0)
        assertTrue(device.agent.waiting)
        device.after(3.0)
        assertEquals(listOf(DeclineReason.EXPIRED), device.declines().map { it.reason }, "what it needs has never come")
        assertEquals(false, device.agent.waiting)
    }

    @Test
    fun `a device that hears no aggregator begins after three seconds`() {
        val device = device().up(status = false)
        device.plan()
        device.offer()
        device.clock.steadyS += 2.9
        device.work()
        assertEquals(0, device.sent("update").size)
        device.clock.steadyS += 0.2
        device.work()
        assertEquals(1, device.sent("update").size)
    }

    @Test
    fun `the aggregator's clock is the latest that it said`() {
        val clock = TestClock()
        val time = AggregatorTime(clock)
        assertEquals(Double.NEGATIVE_INFINITY, time.nowS())
        time.heard(5, 1000.0)
        clock.steadyS += 10
        clock.nowS -= 500
        assertEquals(1010.0, time.nowS())
        time.heard(5, 1002.0) // it was under way for long
        time.heard(4, 9000.0) // of an aggregator that is gone
        assertEquals(1010.0, time.nowS())
        time.heard(6, 900.0) // its clock was set back
        assertEquals(900.0, time.nowS())
    }

    @Test
    fun `nobody without a key is heard`() {
        val device = device().up()
        val before = device.agent.session
        device.unsigned(device.topics.device("phone", "plan"), Fixture.plan())
        device.unsigned(device.topics.device("phone", "reply"), Fixture.finish())
        device.unsigned(device.topics.aggregator, AggregatorStatus(true, "forged", 9, 4e9))
        device.plan(Fixture.plan().copy(deviceId = "another"))
        device.reply(Fixture.finish().copy(deviceId = "another"))
        assertEquals(before, device.agent.session)
        assertEquals(5, device.said.count { "ignored" in it })
        val trusting = FakeAggregator(FolderStorage(File(folder, "trusting")), emptyList()).up()
        trusting.unsigned(trusting.topics.device("phone", "plan"), Fixture.plan())
        trusting.offer()
        assertEquals(1, trusting.sent("update").size)
    }

    @Test
    fun `a voucher that is out of date by the device's clock is not believed`() {
        val device = device()
        device.clock.nowS = 4e9 + 1
        device.up()
        device.plan()
        assertNull(device.agent.session.plan)
    }

    @Test
    fun `a refused update is dropped`() {
        val device = device().up()
        device.plan()
        device.offer()
        val update = digest(device.sent("update").single())
        device.reply(Refuse("phone", "malformed", "x", "check-in"))
        assertEquals(Stage.PENDING, device.agent.session.stage)
        device.reply(Refuse("phone", "too-large", "x", "update", update))
        assertEquals(Stage.ANSWERED, device.agent.session.stage)
        assertNull(storage().update())
    }

    @Test
    fun `garbage changes nothing`() {
        val device = device().up()
        val before = device.agent.session
        val topics = device.topics
        for (topic in listOf(topics.device("phone", "plan"), topics.device("phone", "reply"), topics.aggregator, "other", topics.blob("x"))) {
            for (payload in listOf(byteArrayOf(-1, 0, 3), ByteArray(0), "\n\n\n".toByteArray(), ByteArray(200_000) { 10 })) {
                device.agent.handle(Delivery(topic, payload))
            }
        }
        val long = Fixture.plan(verbs = List(300) { Evaluate() })
        assertTrue(Fixture.signed(long).size > 16 * 1024)
        device.plan(long)
        assertEquals(before, device.agent.session)
    }

    @Test
    fun `a connected device says every minute that it is here, also while it trains`() {
        val device = device().up()
        device.sent("status")
        repeat(100) { device.after(6.0) }
        val beats = device.sent("status").map { decode<DeviceStatus>(it) }
        assertTrue(beats.size in 10..14 && beats.all { it.online })
        device.agent.handle(LinkDown("gone"))
        device.after(100.0)
        assertEquals(0, device.sent("status").size)
        val slow = object : GraphLoader by FakeLoader() {
            lateinit var clock: TestClock

            override fun load(bundle: Bundle): Graphs = object : Graphs by FakeGraphs() {
                override fun run(graph: String, inputs: Tensors): Tensors = FakeGraphs().run(graph, inputs).also { clock.steadyS += 20.0 }
            }
        }
        val training = device(loader = slow).also { slow.clock = it.clock }.up()
        training.plan(Fixture.plan(verbs = listOf(Train(8, epochs = 3))))
        training.sent("status")
        training.offer()
        assertTrue(training.sent("status").size >= 5)
    }

    @Test
    fun `what the owner does not permit is declined before anything runs`() {
        val policy = Policy(maxClipNorm = 0.5, bundles = listOf("fake"), minWindows = 3)
        val device = device(policy).up()
        assertEquals(policy, decode<CheckIn>(device.sent("check-in").first()).policy)
        device.plan()
        assertTrue(device.declines().single().let { it.reason == DeclineReason.POLICY && "max_clip_norm:" in it.detail })
        assertEquals(emptyList(), device.link.subscribed.filter { "/blob/" in it }, "nothing is fetched for it")
        device.plan(Fixture.plan(2, verbs = listOf(Train(8), Protect(0.5))))
        device.offer()
        assertEquals(1, device.sent("update").size)
        device.plan(Fixture.plan(3, verbs = listOf(Train(8), Evaluate(graph = "survey"), Protect(0.5))))
        assertTrue("evaluate reports on what was trained" in device.declines().single().detail)
        val other = FakeAggregator(FolderStorage(File(folder, "other")), policy = policy.copy(bundles = listOf("another"))).up()
        other.plan(Fixture.plan(verbs = listOf(Evaluate())))
        other.offer()
        assertTrue("bundles: fake" in other.declines().single().detail)
        assertEquals(0, (other.loader as FakeLoader).loaded.size)
    }

    @Test
    fun `work ends after as many seconds as are permitted`() {
        val slow = object : GraphLoader by FakeLoader() {
            lateinit var clock: TestClock
            var runs = 0

            override fun load(bundle: Bundle): Graphs = object : Graphs by FakeGraphs() {
                override fun run(graph: String, inputs: Tensors): Tensors {
                    runs++
                    clock.steadyS += 1
                    return FakeGraphs().run(graph, inputs)
                }
            }
        }
        val device = device(Policy(maxSeconds = 7.5), slow).also { slow.clock = it.clock }.up()
        device.plan(Fixture.plan(verbs = listOf(Train(8, epochs = 100))))
        device.offer()
        assertTrue(device.declines().single().let { it.reason == DeclineReason.POLICY && "max_seconds:" in it.detail })
        assertEquals(8, slow.runs)
    }

    @Test
    fun `no more bytes than permitted come and go in a day`() {
        val size = (Fixture.payload.size + Fixture.model.size).toLong()
        val device = device(Policy(maxBytesADay = size)).up()
        device.plan()
        device.offer()
        assertTrue(device.declines().single().let { it.reason == DeclineReason.POLICY && "max_bytes_a_day:" in it.detail })
        device.agent.close()
        val again = device(Policy(maxBytesADay = size)).up()
        again.plan(Fixture.plan(2))
        assertEquals(DeclineReason.POLICY, again.declines().single().reason, "bytes are counted over restarts")
        again.after(25 * 3600.0)
        again.plan(Fixture.plan(3))
        again.offer()
        assertEquals(1, again.sent("update").size, "what is here is not fetched again")
        assertNotNull(again.storage.update())
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

        override fun saveCurrent(current: Current) = write { storage.saveCurrent(current) }

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
        for (at in 1..22) for (after in listOf(false, true)) {
            val counted = twoRounds(File(folder, "$at-$after"), at, after)
            assertEquals(whole.keys, counted.keys)
            for ((round, payload) in whole) {
                assertEquals(decodeUpdate(payload).second, decodeUpdate(counted.getValue(round)).second, "round $round, killed at $at $after")
            }
        }
    }

    /** Two rounds with an aggregator that counts each round's first update and acknowledges equal ones, and a finish; what it counted. */
    private fun twoRounds(folder: File, killAt: Int, after: Boolean): Map<Long, ByteArray> {
        val counted = HashMap<Long, ByteArray>()
        var device = FakeAggregator(Mortal(FolderStorage(folder), killAt, after))
        var restarts = 0
        fun until(done: () -> Boolean, step: () -> Unit) {
            while (!done()) {
                try {
                    device.up()
                    step()
                    device.offer()
                    for (payload in device.sent("update")) {
                        val number = decodeUpdate(payload).first.round
                        val known = counted.getOrPut(number) { payload }
                        assertEquals(decodeUpdate(known).second, decodeUpdate(payload).second, "another update of the same round")
                        device.reply(Acknowledge("phone", digest(payload)))
                    }
                } catch (_: Killed) {
                    check(++restarts == 1)
                    device = FakeAggregator(FolderStorage(folder))
                }
            }
        }
        for (round in 1L..2L) {
            val plan = Fixture.plan(round, verbs = listOf(Evaluate(), Train(8, 2)))
            until({ device.agent.session.let { it.plan?.round == round && it.stage == Stage.ANSWERED } }) { device.plan(plan) }
        }
        until({ device.storage.current() != null }) { device.reply(Fixture.finish()) }
        assertEquals(digest(Fixture.model), FolderStorage(folder).current()!!.model)
        return counted
    }
}
