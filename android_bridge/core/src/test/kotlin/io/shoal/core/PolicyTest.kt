package io.shoal.core

import io.shoal.core.wire.Bundle
import io.shoal.core.wire.CheckIn
import io.shoal.core.wire.DeclineReason
import io.shoal.core.wire.Evaluate
import io.shoal.core.wire.Policy
import io.shoal.core.wire.Protect
import io.shoal.core.wire.Train
import io.shoal.core.wire.decode
import org.junit.jupiter.api.io.TempDir
import java.io.File
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertNotNull
import kotlin.test.assertTrue

/** The policy of a device's owner, enforced by the agent. */
class PolicyTest {
    @TempDir
    lateinit var folder: File

    private fun storage() = FolderStorage(folder)

    private fun device(policy: Policy? = null, loader: GraphLoader = FakeLoader()) = FakeAggregator(storage(), policy = policy, loader = loader)

    @Test
    fun `a check-in says how it is with the device, and how many windows there are of each class only where the owner permits it`() {
        val silent = decode<CheckIn>(device().up().sent("check-in").first())
        assertEquals(Pair(BuildVersion.CLIENT, null), Pair(silent.client, silent.classes))
        val other = FakeAggregator(FolderStorage(File(folder, "other")), policy = Policy(tellClasses = true)).up()
        assertEquals(silent.numTrain, decode<CheckIn>(other.sent("check-in").first()).classes!!.sum())
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
        assertTrue("evaluate reports what neither clipping nor noise covers" in device.declines().single().detail)
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
}
