package io.shoal.core

import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.digest
import io.shoal.core.wire.encodeTensors
import org.junit.jupiter.api.io.TempDir
import java.io.File
import kotlin.test.Test
import kotlin.test.assertEquals

/** What stands in the way of a plan, and what must not; and what a day's bytes are. */
class CriticTest {
    @TempDir
    lateinit var folder: File

    private fun storage() = FolderStorage(folder)

    private fun model(value: Float): ByteArray = encodeTensors(
        decodeTensors(Fixture.model).tensors.mapValues { (_, it) -> Tensor.of(FloatArray(it.size) { value }, it.shape) },
    )

    @Test
    fun `an offer whose blobs never come does not keep plans from being carried out`() {
        val device = FakeAggregator(storage()).up()
        device.reply(Fixture.finish(model = model(3f))) // its model is no longer on offer
        device.plan(Fixture.plan(run = "next", epoch = 6))
        device.offer()
        assertEquals(1, device.sent("update").size, "the next run's plan")
    }

    @Test
    fun `a damaged blob of the model in use does not keep plans from being carried out`() {
        val device = FakeAggregator(storage()).up()
        val used = model(1f)
        device.blobs += used
        device.reply(Fixture.finish(model = used))
        device.offer()
        File(folder, "blobs/${digest(used)}").delete()
        val next = FakeAggregator(storage()).up()
        next.plan(Fixture.plan(run = "next", epoch = 6))
        next.offer()
        assertEquals(1, next.sent("update").size, "the next run's plan")
    }

    @Test
    fun `bytes of the last 24 hours are counted`() {
        val clock = TestClock(nowS = 3600.0 * 100 + 2700) // hour 100, 45 minutes
        val traffic = Traffic(storage(), clock)
        traffic.add(1000)
        clock.nowS += 23.75 * 3600 // 23 h 45 min later
        assertEquals(1000, traffic.lastDay())
    }

    @Test
    fun `a blob that is damaged is no try`() {
        val device = FakeAggregator(storage()).up()
        device.plan()
        repeat(6) {
            device.offer0()
            File(folder, "blobs/${digest(Fixture.model)}").writeBytes(ByteArray(5))
            device.work()
        }
        assertEquals(Stage.WORKING, device.agent.session.stage, "it is not quarantined")
    }

    private fun FakeAggregator.offer0() {
        for (payload in blobs) {
            if (topics.blob(digest(payload)) in link.subscribed) agent.handle(Delivery(topics.blob(digest(payload)), payload))
        }
    }
}
