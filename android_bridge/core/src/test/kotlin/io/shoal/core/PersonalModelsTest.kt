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

/**
 * Personal models of a phone: the model that each belongs to, how long it stays, and its damage.
 */
class PersonalModelsTest {
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

    /** Return a plan that leaves a personal model of this model. */
    private fun FakeAggregator.keep(round: Long, model: ByteArray = Fixture.model) {
        blobs += model
        plan(Fixture.plan(round, verbs = listOf(Train(8, report = false))).copy(model = digest(model)))
        offer()
    }

    private fun FakeAggregator.report(): InUse = decode(sent("in-use").last())

    private fun FakeAggregator.checkedIn() = decode<CheckIn>(sent("check-in").last()).personalModels

    private fun used() = storage().current()!!

    private fun personalTensors() = used().private.filterKeys { Names.roleOf(it) == "personal" }

    @Test
    fun `every implementation has the same personal models and uses the same one`() {
        val cases = (parseJson(File(repository, "wire/vectors/personal-models.json").readBytes()) as JsonArray).items.map { Fields(it, "personal-models.json") }
        assertTrue(cases.size >= 12)
        for (case in cases) {
            val latest = case.list("personal_models") { it, path -> personalModelOf(Fields(it, path)) }
            val models = latest.fold(emptyList(), PersonalModelRules::with)
            val offered = case.obj("offered")
            val (bundle, model) = Pair(offered.digest("bundle"), offered.digest("model"))
            assertEquals(case.strings("held"), models.map { it.tensors }, case.string("name"))
            assertEquals(case.string("used"), PersonalModelRules.of(models, bundle, model)?.tensors.orEmpty(), case.string("name"))
            assertEquals(case.bool("alone"), PersonalModelRules.whyAlone(models, bundle, model).isNotEmpty(), case.string("name"))
        }
    }

    @Test
    fun `a personal model is used with its own model alone, and again when that comes back, also after more rounds`() {
        val device = device()
        device.keep(1)
        device.release(1)
        val first = used().personalModel
        assertTrue(first.isNotEmpty() && personalTensors().isNotEmpty())
        assertEquals("", device.report().alone)
        for (round in 2L..5L) device.plan(Fixture.plan(round)).also { device.offer() }
        device.release(2, model(2f))
        assertEquals("", used().personalModel)
        assertEquals(emptyMap(), personalTensors())
        assertTrue("was made from model ${digest(Fixture.model).take(12)}" in device.report().alone)
        assertTrue(device.log.any { "Model in use: release=2 personal_model=none: the personal model of" in it })
        device.release(3, ByteArray(100))
        assertTrue("was made from model" in device.report().alone, "of the model in use, though another one failed")
        val again = device()
        again.release(4)
        assertEquals(first, used().personalModel)
        assertEquals("", again.report().alone)
    }

    @Test
    fun `a newer personal model of the model in use comes into use`() {
        val device = device()
        device.keep(1)
        device.reply(Fixture.finish())
        device.offer()
        val first = used().personalModel
        device.keep(2)
        assertNotEquals(first, used().personalModel)
        assertEquals(listOf(used().personalModel), storage().session().personalModels.map { it.tensors })
        device.reply(Fixture.finish(epoch = 6))
        assertEquals(2, device.log.count { "personal_model=used" in it })
    }

    @Test
    fun `the personal models of the last few models stay, with their blobs`() {
        val device = device()
        for (number in 1L..5L) device.keep(number, model(number.toFloat()))
        device.plan(Fixture.plan(6))
        device.offer()
        val models = storage().session().personalModels
        assertEquals((3..5).map { digest(model(it.toFloat())) }, models.map { it.model })
        assertTrue(models.all { storage().hasBlob(it.tensors) })
    }

    @Test
    fun `without its damaged personal model a model answers alone, and the phone reports it`() {
        device().keep(1)
        val blob = File(folder, "blobs/${storage().session().personalModels.single().tensors}")
        blob.writeBytes(blob.readBytes().also { it[it.size / 2] = (it[it.size / 2].toInt() xor 4).toByte() })
        val device = device()
        device.release(1)
        assertEquals(Pair("", emptyMap()), Pair(used().personalModel, personalTensors()))
        assertTrue("damaged" in device.report().alone)
        assertEquals(emptyList(), storage().session().personalModels)
    }

    @Test
    fun `a check-in names the models that have an undamaged personal model`() {
        val device = device()
        for (number in 1L..2L) device.keep(number, model(number.toFloat()))
        val models = (1..2).map { digest(model(it.toFloat())) }
        assertEquals(models, device().checkedIn())
        val (first, last) = storage().session().personalModels.map { File(folder, "blobs/${it.tensors}") }
        first.writeBytes(first.readBytes().also { it[it.size / 2] = (it[it.size / 2].toInt() xor 4).toByte() })
        assertEquals(models.drop(1), device().checkedIn())
        assertTrue(last.delete())
        assertEquals(emptyList(), device().checkedIn())
    }
}
