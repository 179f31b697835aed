package io.shoal.core

import io.shoal.core.wire.CheckIn
import io.shoal.core.wire.Fields
import io.shoal.core.wire.InUse
import io.shoal.core.wire.JsonArray
import io.shoal.core.wire.Names
import io.shoal.core.wire.Train
import io.shoal.core.wire.decode
import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.digest
import io.shoal.core.wire.encodeTensors
import io.shoal.core.wire.parseJson
import org.junit.jupiter.api.io.TempDir
import java.io.File
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertNotEquals
import kotlin.test.assertTrue

/** What a phone has kept: of which model it is, how long it is held, and what becomes of it when it is damaged. */
class KeptTest {
    @TempDir
    lateinit var folder: File

    private fun storage() = FolderStorage(folder)

    private fun device() = FakeAggregator(storage()).up()

    private fun model(value: Float): ByteArray = encodeTensors(
        decodeTensors(Fixture.model).tensors.mapValues { (_, it) -> Tensor.of(FloatArray(it.size) { value }, it.shape) },
    )

    private fun FakeAggregator.release(number: Long, model: ByteArray = Fixture.model) {
        blobs += model
        deliver(topics.device("phone", "release"), Fixture.release(number, model, epoch = 5))
        offer()
    }

    /** A plan after which the phone keeps something of this model. */
    private fun FakeAggregator.keep(round: Long, model: ByteArray = Fixture.model) {
        blobs += model
        plan(Fixture.plan(round, verbs = listOf(Train(8, report = false))).copy(model = digest(model)))
        offer()
    }

    private fun FakeAggregator.said(): InUse = decode(sent("in-use").last())

    private fun FakeAggregator.checkedIn() = decode<CheckIn>(sent("check-in").last()).kept

    private fun used() = storage().current()!!

    private fun keptTensors() = used().private.filterKeys { Names.roleOf(it) == "kept" }

    @Test
    fun `what is held, and what of it is used, is that of every implementation`() {
        val cases = (parseJson(File(repository, "wire/vectors/kept.json").readBytes()) as JsonArray).items.map { Fields(it, "kept.json") }
        assertTrue(cases.size >= 12)
        for (case in cases) {
            val made = case.list("kept") { it, path -> keptOf(Fields(it, path)) }
            val held = made.fold(emptyList(), KeptRules::with)
            val offered = case.obj("offered")
            val (bundle, model) = Pair(offered.digest("bundle"), offered.digest("model"))
            assertEquals(case.strings("held"), held.map { it.tensors }, case.string("name"))
            assertEquals(case.string("used"), KeptRules.of(held, bundle, model)?.tensors.orEmpty(), case.string("name"))
            assertEquals(case.bool("alone"), KeptRules.whyAlone(held, bundle, model).isNotEmpty(), case.string("name"))
        }
    }

    @Test
    fun `what was kept is used with its own model alone, and again when that comes back, also after more rounds`() {
        val device = device()
        device.keep(1)
        device.release(1)
        val own = used().kept
        assertTrue(own.isNotEmpty() && keptTensors().isNotEmpty())
        assertEquals("", device.said().alone)
        for (round in 2L..5L) device.plan(Fixture.plan(round)).also { device.offer() }
        device.release(2, model(2f))
        assertEquals("", used().kept)
        assertEquals(emptyMap(), keptTensors())
        assertTrue("was made of model ${digest(Fixture.model).take(12)}" in device.said().alone)
        assertTrue(device.said.any { "release 2 is in use, alone: what is kept" in it })
        device.release(3, ByteArray(100))
        assertTrue("was made of model" in device.said().alone, "of the model in use, though another one failed")
        val again = device()
        again.release(4)
        assertEquals(own, used().kept)
        assertEquals("", again.said().alone)
    }

    @Test
    fun `what is kept anew of the model in use comes into use`() {
        val device = device()
        device.keep(1)
        device.reply(Fixture.finish())
        device.offer()
        val first = used().kept
        device.keep(2)
        assertNotEquals(first, used().kept)
        assertEquals(listOf(used().kept), storage().session().kept.map { it.tensors })
        device.reply(Fixture.finish(epoch = 6))
        assertEquals(2, device.said.count { "with what the device has kept of it" in it })
    }

    @Test
    fun `of a few models something is kept, and their blobs stay`() {
        val device = device()
        for (number in 1L..5L) device.keep(number, model(number.toFloat()))
        device.plan(Fixture.plan(6))
        device.offer()
        val held = storage().session().kept
        assertEquals((3..5).map { digest(model(it.toFloat())) }, held.map { it.model })
        assertTrue(held.all { storage().hasBlob(it.tensors) })
    }

    @Test
    fun `where what was kept is damaged the model answers alone, and the phone says so`() {
        device().keep(1)
        val blob = File(folder, "blobs/${storage().session().kept.single().tensors}")
        blob.writeBytes(blob.readBytes().also { it[it.size / 2] = (it[it.size / 2].toInt() xor 4).toByte() })
        val device = device()
        device.release(1)
        assertEquals(Pair("", emptyMap()), Pair(used().kept, keptTensors()))
        assertTrue("damaged" in device.said().alone)
        assertEquals(emptyList(), storage().session().kept)
    }

    @Test
    fun `a check-in says of which models something is kept that is not damaged`() {
        val device = device()
        for (number in 1L..2L) device.keep(number, model(number.toFloat()))
        val models = (1..2).map { digest(model(it.toFloat())) }
        assertEquals(models, device().checkedIn())
        val (first, last) = storage().session().kept.map { File(folder, "blobs/${it.tensors}") }
        first.writeBytes(first.readBytes().also { it[it.size / 2] = (it[it.size / 2].toInt() xor 4).toByte() })
        assertEquals(models.drop(1), device().checkedIn())
        assertTrue(last.delete())
        assertEquals(emptyList(), device().checkedIn())
    }
}
