package io.shoal.core

import io.shoal.core.wire.Bundle
import io.shoal.core.wire.DeclineReason
import io.shoal.core.wire.DeviceStatus
import io.shoal.core.wire.Fields
import io.shoal.core.wire.JsonObject
import io.shoal.core.wire.Policy
import io.shoal.core.wire.Train
import io.shoal.core.wire.decode
import io.shoal.core.wire.parseJson
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.TestFactory
import org.junit.jupiter.api.io.TempDir
import java.io.File
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertNull
import kotlin.test.assertTrue

/** The device's estimate of the time, and its heartbeats. */
class TimeTest {
    @TempDir
    lateinit var folder: File

    private fun storage() = FolderStorage(folder)

    private fun device(policy: Policy? = null, loader: GraphLoader = FakeLoader()) = FakeAggregator(storage(), policy = policy, loader = loader)

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
    fun `a plan of a later epoch is not judged by the clock of an earlier one`() {
        val device = device().up(status = false)
        device.status(atS = 90_000.0)
        device.plan(Fixture.plan(deadlineAtS = 2000.0).copy(epoch = Fixture.plan().epoch + 1))
        device.offer()
        device.work()
        assertEquals(emptyList(), device.declines())
        assertEquals(1, device.sent("update").size)
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

    @TestFactory
    fun `the aggregator's clock, in scenarios that every implementation plays`(): List<DynamicTest> {
        val scenarios = parseJson(File(repository, "wire/vectors/time.json").readBytes())
        val read = Fields(JsonObject(mapOf("all" to scenarios)), "time.json").list("all") { it, path -> Fields(it, path) }
        assertTrue(read.size >= 8)
        return read.map { scenario ->
            DynamicTest.dynamicTest(scenario.string("name")) {
                val clock = TestClock()
                val time = AggregatorTime(clock)
                assertEquals(Double.NEGATIVE_INFINITY, time.nowS())
                for (step in scenario.list("steps") { it, path -> Fields(it, path) }) {
                    clock.steadyS += step.double("after_s")
                    clock.nowS -= 500 // it is not asked
                    assertEquals(step.bool("acts"), time.hear(step.count("epoch"), step.double("at_s")))
                    assertEquals(step.double("now_s"), time.nowS())
                    assertEquals(step.double("now_s"), time.forEpoch(step.count("known")))
                    assertEquals(Double.NEGATIVE_INFINITY, time.forEpoch(step.count("known") + 1))
                }
            }
        }
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
}
