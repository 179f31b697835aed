package io.shoal.android

import io.shoal.android.FleetState.Blocked
import io.shoal.core.ConfigException
import io.shoal.core.Current
import io.shoal.core.Log
import io.shoal.core.Packaged
import io.shoal.core.Tensor
import io.shoal.core.wire.Bundle
import io.shoal.core.wire.PublicKey
import io.shoal.core.wire.digest
import io.shoal.core.wire.encodeTensors
import org.junit.jupiter.api.io.TempDir
import java.io.File
import java.util.concurrent.CountDownLatch
import kotlin.concurrent.thread
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertIs
import kotlin.test.assertNull
import kotlin.test.assertTrue

/** The app's own model. */
class PackagedTest {
    @TempDir
    lateinit var root: File

    private var platform = FakePlatform()
    private val payload by lazy { fromPython("executor/bundle.zip").readBytes() }
    private val trust by lazy { fromPython("executor/trust.pem").readText() }
    private val bundle by lazy { Bundle.unpack(payload, PublicKey.parse(trust)) }
    private val x = Tensor.of(FloatArray(16), listOf(2, 2, 4))

    private fun weights(value: Float) = encodeTensors(weightsOf(bundle, value))

    /** Return the fleet of a process that has just started; nothing is written yet. */
    private fun started(weights: ByteArray? = weights(1f), trusted: String = trust, payload: ByteArray = this.payload): Fleet {
        platform = FakePlatform(TestKeys(File(root, "keys")))
        platform.assets["activities.shoal"] = payload
        weights?.let { platform.assets["activities.safetensors"] = it }
        val builder = FleetBuilder("f").broker("mqtts://b").trust(trusted).windows(HomeTest.Source::class.java)
        builder.model("activities.shoal", weights?.let { "activities.safetensors" })
        return Fleet("f", Home.of(root, "f"), platform, Log.SILENT).also { it.configure(builder.build()) }
    }

    private fun Fleet.release(number: Long, value: Float) {
        val model = weights(value)
        storage().putBlob(bundle.digest, payload)
        storage().putBlob(digest(model), model)
        storage().saveCurrent(Current(bundle.digest, digest(model), "run", emptyMap(), number))
    }

    private fun Fleet.answer() = predict(x).values(1)[0]

    @Test
    fun `it answers from the first second, without consent, and a release takes its place for good`() {
        val fleet = started()
        assertEquals(0.5f + 1f / 32, fleet.answer())
        assertEquals(listOf(true, 0L), fleet.model!!.let { listOf(it.isPackaged, it.release) })
        platform.write()
        assertEquals(Blocked.Reason.CONSENT, assertIs<Blocked>(fleet.state).reason)
        assertTrue(platform.requests.isEmpty())
        fleet.release(1, 4f)
        assertEquals(0.5f + 4f / 32, fleet.answer())
        for (next in listOf(started(), started(weights(7f)))) {
            platform.write()
            assertEquals(0.5f + 4f / 32, next.answer())
            assertEquals(listOf(false, 1L), next.model!!.let { listOf(it.isPackaged, it.release) })
        }
    }

    @Test
    fun `a newer app's takes its place, and where the fleet's model is damaged it answers again`() {
        assertEquals(0.5f + 1f / 32, started().answer())
        val newer = started(weights(2f))
        platform.write()
        assertEquals(0.5f + 2f / 32, newer.answer())
        newer.release(1, 4f)
        File(root, "fleets/f/state").walk().filter { it.name == digest(weights(4f)) }.forEach { it.writeText("damaged") }
        assertEquals(0.5f + 2f / 32, started(weights(2f)).answer())
    }

    @Test
    fun `where its files are gone it is stored again, by a job and by a prediction`() {
        fun blobs() = File(root, "fleets/f/state").walk().filter { it.isFile && it.parentFile.name == "blobs" }.toList()
        assertEquals(0.5f + 1f / 32, started().answer())
        val names = blobs().map { it.name }.toSet()
        for (name in names) {
            blobs().single { it.name == name }.delete()
            assertEquals(0.5f + 1f / 32, started().answer())
            blobs().single { it.name == name }.delete()
            started().bringModel()
            assertEquals(names, blobs().map { it.name }.toSet())
        }
    }

    @Test
    fun `without weights the bundle's own values answer`() {
        val first = bundle.initial.getValue("shared/w").floats().get(0)
        assertEquals(0.5f + first / 32, started(weights = null).answer())
    }

    @Test
    fun `who leaves has it again with the next settings`() {
        val fleet = started()
        fleet.release(1, 4f)
        fleet.leave()
        platform.write()
        assertFailsWith<ConfigException> { fleet.answer() }
        assertEquals(0.5f + 1f / 32, started().answer())
    }

    @Test
    fun `nothing is deleted under the app's model while it is being stored`() {
        for (deletion in listOf<Fleet.() -> Unit>({ consent.withdraw(eraseLocal = true) }, { leave() })) {
            val fleet = started()
            platform.write()
            val (began, goesOn) = Pair(CountDownLatch(1), CountDownLatch(1))
            platform.reading = {
                began.countDown()
                goesOn.await()
            }
            val storing = thread { fleet.bringModel() }
            began.await()
            fleet.deletion()
            val writing = platform.writing()
            assertTrue(writing.isAlive, "it waits")
            goesOn.countDown()
            listOf(storing, writing).forEach(Thread::join)
            assertEquals(0.5f + 1f / 32, started().answer())
        }
    }

    @Test
    fun `what is not signed, damaged, missing, or not the bundle's model is refused with its name`() {
        val others = fromPython("executor/other.pem").readText()
        val damaged = payload.copyOf().also { it[it.size / 2] = (it[it.size / 2] + 1).toByte() }
        val wrong = listOf(
            started(trusted = others),
            started(payload = damaged),
            started(weights = "no tensors".toByteArray()),
            started(weights = weights(Float.NaN)),
            started(weights = encodeTensors(weightsOf(bundle, 1f) - "shared/w")),
            started(weights = encodeTensors(weightsOf(bundle, 1f) + ("shared/more" to Tensor.scalar(1f)))),
        )
        for (fleet in wrong) assertTrue("activities.shoal" in assertFailsWith<ConfigException> { fleet.answer() }.message!!)
        platform.write()
        wrong.last().consent.grant("terms-1")
        assertEquals(Blocked.Reason.SETTINGS, assertIs<Blocked>(wrong.last().state).reason)
        val missing = started()
        platform.assets.clear()
        assertTrue("asset 'activities.shoal'" in assertFailsWith<ConfigException> { missing.answer() }.message!!)
        assertNull(missing.storage().current())
        assertFailsWith<ConfigException> {
            FleetBuilder("f").enrol("https://service", tokenOf(0)).windows(HomeTest.Source::class.java).model("a.shoal").build()
        }
    }

    @Test
    fun `listeners are told which model answers, and of rounds, each by its own executor`() {
        val fleet = started()
        val calls = ArrayList<String>()
        val listener = ModelListener { calls += "${it.run} ${it.release}" }
        fleet.addModelListener(listener, Runnable::run)
        val gone = java.util.concurrent.Executors.newSingleThreadExecutor().also { it.shutdown() }
        fleet.addModelListener({ calls += "never" }, gone)
        platform.write()
        fleet.release(1, 4f)
        fleet.removeModelListener(listener)
        fleet.release(2, 5f)
        assertEquals(listOf("${Packaged.RUN} 0", "run 1"), calls.distinct())
    }

    @Test
    fun `a phone that is not enrolled yet predicts, and goes on with the same model when it is`() {
        val keys = TestKeys(File(root, "keys"))
        platform = FakePlatform(keys, FakeDesk("g", trust))
        platform.assets["activities.shoal"] = payload
        val builder = FleetBuilder("g").enrol("https://service", tokenOf(0)).trust(trust).windows(HomeTest.Source::class.java).model("activities.shoal")
        val fleet = Fleet("g", Home.of(root, "g"), platform, Log.SILENT)
        fleet.configure(builder.build(), builder.token)
        val before = fleet.answer()
        fleet.consent.grant("terms-1")
        platform.write()
        assertNull(fleet.enrol())
        assertEquals(before, fleet.answer())
        assertEquals("g-1", fleet.deviceId)
        fleet.release(1, 4f)
        assertEquals(0.5f + 4f / 32, fleet.answer())
    }
}
