package io.shoal.core

import io.shoal.core.wire.DeclineReason
import io.shoal.core.wire.Policy
import org.junit.jupiter.api.io.TempDir
import java.io.File
import kotlin.test.Test
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertNull
import kotlin.test.assertTrue

/** The bytes of a day: their count, and the effect of the rule `max_bytes_a_day` on an update. */
class TrafficTest {
    @TempDir
    lateinit var folder: File

    /** Return the rest of 1000 bytes that came at a quarter to the hour. */
    private fun counted(hours: Double): Long {
        val clock = TestClock(nowS = 3600.0 * 100 + 2700)
        val traffic = Traffic(FolderStorage(File(folder, "$hours")), clock)
        traffic.add(1000)
        clock.nowS += hours * 3600
        return traffic.lastDay()
    }

    @Test
    fun `bytes of the last 24 hours count`() {
        for (hours in listOf(0.0, 1.0, 23.75, 24.0)) assertEquals(1000, counted(hours), "after $hours h")
        assertEquals(0, counted(25.0))
        assertEquals(1000, counted(-50.0), "the clock was set back")
    }

    @Test
    fun `a limit is exceeded by what is above it`() {
        val traffic = Traffic(FolderStorage(folder), TestClock())
        traffic.add(1000)
        assertNull(traffic.exceeds(1000))
        assertNull(traffic.exceeds(null, 1_000_000_000))
        assertEquals("max_bytes_a_day: 1001 in 24 hours, 1000 are permitted", traffic.exceeds(1000, 1))
    }

    /** Return a device that was sent a plan, and may use so many bytes a day. */
    private fun worked(name: String, most: Long): FakeAggregator {
        val device = FakeAggregator(FolderStorage(File(folder, name)), policy = Policy(maxBytesADay = most)).up()
        device.plan()
        device.offer()
        return device
    }

    /** Return the bytes of a round until its update is sent, and those of the update. */
    private fun sizes(): Pair<Long, Int> {
        val device = worked("unlimited", 1_000_000_000)
        device.agent.close()
        return Pair(device.storage.traffic().values.sum(), device.sent("update").single().size)
    }

    @Test
    fun `an update that would exceed the day is declined`() {
        val (round, update) = sizes()
        val device = worked("limited", round - update / 2)
        val decline = device.declines().single()
        assertEquals(DeclineReason.POLICY, decline.reason)
        assertTrue(decline.detail.startsWith("max_bytes_a_day: "))
        assertEquals(0, device.sent("update").size)
        assertNull(device.storage.update())
    }

    @Test
    fun `a pending update waits until the day permits it, and no job for it`() {
        val (round, size) = sizes()
        val most = round + size / 2
        val device = worked("limited", most)
        val update = device.sent("update").single()
        assertTrue(device.agent.waiting, "for the answer")
        device.after(10.0)
        assertEquals(0, device.sent("update").size)
        assertTrue(device.log.any { "Update waits: device=" in it })
        assertEquals(false, device.agent.waiting)
        device.agent.close()
        val next = FakeAggregator(device.storage, policy = Policy(maxBytesADay = most)).up()
        assertEquals(Pair(Stage.PENDING, 0), Pair(next.agent.session.stage, next.sent("update").size))
        next.after(25 * 3600.0)
        assertContentEquals(update, next.sent("update").single())
        assertTrue(next.agent.waiting)
    }
}
