package io.shoal.core

import io.shoal.core.wire.Annotate
import io.shoal.core.wire.Bundle
import io.shoal.core.wire.DeclineReason
import io.shoal.core.wire.Evaluate
import io.shoal.core.wire.Policy
import io.shoal.core.wire.PublicKey
import io.shoal.core.wire.Train
import io.shoal.core.wire.Verb
import org.junit.jupiter.api.io.TempDir
import java.io.File
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue

/** Faults in a plan, a bundle or a runtime end nothing else. */
class ContainmentTest {
    @TempDir
    lateinit var folder: File

    private fun storage() = FolderStorage(folder)

    private fun device(policy: Policy? = null, loader: GraphLoader = FakeLoader()) = FakeAggregator(storage(), policy = policy, loader = loader)

    /** Return some of the training windows. */
    private fun first(count: Int): Windows {
        val (all, chosen) = Pair(Fixture.windows, IntArray(count) { it })
        return Windows(all.trainX.take(chosen), all.trainY.take(chosen), all.testX, all.testY)
    }

    /** Loader that fails, or whose graphs do. */
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
    fun `what a plan or its bundle does wrong is a decline`() {
        fun declined(number: Int, keys: List<PublicKey>, versions: Map<String, Long>, verb: Verb, windows: Windows = Fixture.windows): String {
            val storage = FolderStorage(File(folder, "$number")).apply { save(Session(versions = versions)) }
            val device = FakeAggregator(storage, Fixture.keys, windows = windows)
            val foreign = FakeAggregator(storage, keys)
            val receiver = if (keys === Fixture.keys) device else foreign
            receiver.up()
            if (keys === Fixture.keys) receiver.plan(Fixture.plan(verbs = listOf(verb))) else receiver.plan()
            receiver.offer()
            return receiver.declines().joinToString { "${it.reason.text}: ${it.detail}" }
        }
        assertEquals("", declined(1, Fixture.otherKeys, emptyMap(), Train(8)), "a plan by a stranger is not even declined")
        assertTrue("bundle: bundle fake: version 3 is older than version 4" in declined(2, Fixture.keys, mapOf("fake" to 4), Evaluate()))
        assertTrue("failed: graph 'predict'" in declined(3, Fixture.keys, emptyMap(), Train(8, graph = "predict")))
        assertTrue("failed: plan: no graph 'none'" in declined(4, Fixture.keys, emptyMap(), Annotate("none", "x")))
        assertTrue("data: Training needs at least 2 windows, got 1" in declined(5, Fixture.keys, emptyMap(), Train(8), first(1)))
        assertTrue("policy: min_windows" in declined(6, Fixture.keys, emptyMap(), Train(8), first(0)))
        assertEquals("", declined(7, Fixture.keys, emptyMap(), Train(8, least = 1), first(0)), "the verb is left out")
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
                override fun load(bundle: Bundle): Graphs = throw StoppedException().also { started++ }
            }
            val device = device(loader = deadly).up()
            if (start == 1) device.plan()
            try {
                device.offer()
            } catch (_: StoppedException) {
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
        for (start in 1..8) { // before the first batch: a job that comes further would set the count back
            val device = FakeAggregator(storage(), stop = { true }).up()
            assertFailsWith<StoppedException> {
                device.plan()
                device.offer()
            }
            assertEquals(0, storage().session().tries)
        }
        val device = device().up()
        device.work()
        assertEquals(1, device.sent("update").size)
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
        val long = Fixture.plan(verbs = List(1_000) { Evaluate() })
        assertTrue(Fixture.signed(long).size > 48 * 1024)
        device.plan(long)
        assertEquals(before, device.agent.session)
    }
}
