package io.shoal.core

import io.shoal.core.wire.Bundle
import io.shoal.core.wire.Evaluate
import io.shoal.core.wire.Fetch
import io.shoal.core.wire.Policy
import io.shoal.core.wire.Train
import io.shoal.core.wire.decode
import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.digest
import io.shoal.core.wire.encodeTensors
import org.junit.jupiter.api.io.TempDir
import java.io.File
import java.io.IOException
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertNull
import kotlin.test.assertTrue

/** The model in use: offers of finished runs, and the model that answers. */
class CurrentTest {
    @TempDir
    lateinit var folder: File

    private fun storage() = FolderStorage(folder)

    private fun predictor() = Predictor(storage(), FakeLoader(), Fixture.keys)

    private fun device(loader: GraphLoader = FakeLoader()) = FakeAggregator(storage(), loader = loader).up()

    /** Return a model of the bundle's layout whose weights are all this value. */
    private fun model(value: Float): ByteArray = encodeTensors(
        decodeTensors(Fixture.model).tensors.mapValues { (_, it) -> Tensor.of(FloatArray(it.size) { value }, it.shape) },
    )

    @Test
    fun `a bundle that the policy does not permit does not come into use`() {
        for ((permitted, used) in listOf(listOf("other") to false, listOf("other", Fixture.bundle.manifest.name) to true)) {
            val device = FakeAggregator(storage(), policy = Policy(bundles = permitted)).up()
            device.finish(model(1f))
            assertEquals(used, device.log.any { "Model in use: " in it }, "$permitted")
            assertEquals(!used, device.log.any { "the policy does not permit the bundle" in it }, "$permitted")
            folder.deleteRecursively()
        }
    }

    private fun FakeAggregator.finish(model: ByteArray, epoch: Long = 5, bundle: ByteArray = Fixture.payload) {
        blobs += listOf(model, bundle)
        reply(Fixture.finish(epoch = epoch, bundle = bundle, model = model))
        offer()
    }

    /** Graphs of which one has another answer. */
    private class Answering(private val answer: (Tensor) -> Tensor) : GraphLoader by FakeLoader() {
        override fun load(bundle: Bundle): Graphs = object : Graphs by FakeGraphs() {
            override fun run(graph: String, inputs: Tensors): Tensors =
                FakeGraphs().run(graph, inputs).mapValues { (name, it) -> if (name == "output/probabilities") answer(it) else it }
        }
    }

    @Test
    fun `the last run's model predicts`() {
        val device = device()
        assertFailsWith<ModelUnavailableException> { predictor().predict(Fixture.windows.testX) }
        device.plan(Fixture.plan(verbs = listOf(Evaluate())))
        device.offer()
        device.reply(Fixture.finish())
        assertEquals(listOf(19, 3), predictor().use { it.predict(Fixture.windows.testX) }.shape)
        assertTrue(device.log.any { "Model in use: " in it })
        assertFailsWith<DataException> { predictor().predict(Tensor.allocate(DType.FLOAT32, listOf(3, 2, 5))) }
        assertFailsWith<DataException> { predictor().predict(Fixture.windows.testX.take(IntArray(0))) }
    }

    @Test
    fun `it goes on while another run's plans come, and its blobs are kept`() {
        val device = device()
        val old = model(1f)
        device.finish(old)
        device.plan(Fixture.plan(run = "next", epoch = 6).copy(model = "9".repeat(64)))
        predictor().use { it.predict(Fixture.windows.testX) }
        device.plan(Fixture.plan(2, run = "next", epoch = 6))
        device.offer()
        assertEquals(1, device.sent("update").size)
        assertEquals(setOf(old, Fixture.payload, Fixture.model).map(::digest).toSet(), File(folder, "blobs").list()!!.toSet())
        predictor().use { it.predict(Fixture.windows.testX) }
    }

    @Test
    fun `an offer that cannot be used leaves the old model in use`() {
        val old = model(1f)
        device().finish(old)
        val offers = listOf<FakeAggregator.() -> Unit>(
            { finish(ByteArray(100), 6) },
            { finish(encodeTensors(emptyMap()), 7) },
            { finish(model(2f), 8, ByteArray(100)) },
        )
        for (offer in offers) device().run { offer() }
        val wrong = listOf<(Tensor) -> Tensor>(
            { Tensor.of(FloatArray(it.size) { Float.NaN }, it.shape) },
            { Tensor.of(FloatArray(it.size) { -0.5f }, it.shape) },
            { Tensor.of(FloatArray(it.size) { 7f }, it.shape) },
            { Tensor.of(FloatArray(it.rows), listOf(it.rows, 1)) },
            { throw UnsatisfiedLinkError("predict") },
            { throw OutOfMemoryError() },
        )
        for ((number, answer) in wrong.withIndex()) device(Answering(answer)).finish(model(3f + number), 10L + number)
        assertEquals(digest(old), storage().current()!!.model)
        predictor().use { it.predict(Fixture.windows.testX) }
        val well = device()
        well.finish(model(9f), 30)
        assertEquals(digest(model(9f)), storage().current()!!.model)
    }

    @Test
    fun `an offer that fails is tried again by the next job, and not by the same one`() {
        val failing = Answering { throw StackOverflowError() }
        var tried = 0
        repeat(3) { start ->
            val device = device(failing)
            if (start == 0) device.finish(model(1f)) else device.offer()
            repeat(3) { device.offer() }
            tried += device.log.count { "Offered model not taken into use" in it }
            assertTrue(!device.agent.waiting)
        }
        assertEquals(3, tried)
        assertNull(storage().current())
        device().finish(model(2f), 6)
        assertEquals(digest(model(2f)), storage().current()!!.model)
    }

    @Test
    fun `an offer whose blobs never come does not keep plans from being carried out`() {
        val device = device()
        device.reply(Fixture.finish(model = model(3f))) // its model is no longer on offer
        device.plan(Fixture.plan(run = "next", epoch = 6))
        device.offer()
        assertEquals(1, device.sent("update").size, "the next run's plan")
    }

    @Test
    fun `an offer whose blobs never come is waited for until they were asked for three times`() {
        val device = device()
        device.sent("fetch")
        device.reply(Fixture.finish(model = model(3f)))
        device.deliverBlobs()
        val waited = generateSequence { device.agent.waiting.also { if (it) device.after(1.0) } }.takeWhile { it }.take(1000).count()
        assertEquals(70, waited, "after 10, 30 and 70 seconds")
        assertEquals(List(3) { digest(model(3f)) }, device.sent("fetch").map { decode<Fetch>(it).digest })
        device.blobs += model(3f)
        device.offer()
        assertEquals(digest(model(3f)), storage().current()!!.model, "if they come, it is taken into use")
        assertEquals(false, device.agent.waiting)
    }

    @Test
    fun `a damaged blob of the model in use does not keep plans from being carried out`() {
        val used = model(1f)
        device().finish(used)
        File(folder, "blobs/${digest(used)}").delete()
        val next = device()
        next.plan(Fixture.plan(run = "next", epoch = 6))
        next.offer()
        assertEquals(1, next.sent("update").size, "the next run's plan")
    }

    @Test
    fun `a prediction that fails on a full disk says why it failed`() {
        device().finish(model(1f))
        val full = object : Storage by storage() {
            override fun saveFailures(count: Long): Unit = throw IOException("No space left on device")
        }
        val failing = Answering { throw BundleException("the graph fails") }
        val error = assertFailsWith<BundleException> { Predictor(full, failing, Fixture.keys).predict(Fixture.windows.testX) }
        assertEquals("the graph fails", error.message)
    }

    @Test
    fun `a damaged model is fetched again`() {
        val device = device()
        val model = model(1f)
        device.finish(model)
        File(folder, "blobs/${digest(model)}").writeBytes(ByteArray(5))
        val error = assertFailsWith<ConfigException> { predictor().predict(Fixture.windows.testX) }
        assertTrue("damaged" in error.message!!)
        val next = device()
        next.blobs += model
        next.offer()
        predictor().use { it.predict(Fixture.windows.testX) }
    }

    @Test
    fun `a predictor takes up another model by itself`() {
        predictor().use { predictor ->
            device().finish(model(1f))
            predictor.predict(Fixture.windows.testX)
            val device = device()
            device.finish(model(2f), 6)
            device.plan(Fixture.plan(run = "next", epoch = 7, verbs = listOf(Train(8))))
            device.offer()
            predictor.predict(Fixture.windows.testX)
            assertEquals(3, File(folder, "blobs").list()!!.count { it != digest(Fixture.payload) }, "the plan's, the one in use, the one before")
        }
    }

    @Test
    fun `one thread runs what is trained and predicted`() {
        val threads = java.util.Collections.synchronizedSet(HashSet<String>())
        val noting = object : GraphLoader by FakeLoader() {
            override fun load(bundle: Bundle): Graphs = object : Graphs by FakeGraphs() {
                override fun run(graph: String, inputs: Tensors): Tensors {
                    threads += Thread.currentThread().name
                    if (graph == "weigh") throw OutOfMemoryError("in it")
                    return FakeGraphs().run(graph, inputs)
                }
            }
        }
        val begun = java.util.Collections.synchronizedList(ArrayList<String>())
        val owned = OwnerThread("the-owner") { begun += Thread.currentThread().name }.owned(noting)
        val (one, other) = List(2) { owned.load(Fixture.bundle) }
        val x = mapOf("batch/x" to Fixture.windows.testX)
        val running = List(4) { kotlin.concurrent.thread { repeat(20) { one.run("predict", x) } } }
        repeat(20) { other.run("predict", x) }
        running.forEach { it.join() }
        assertEquals("in it", assertFailsWith<OutOfMemoryError> { one.run("weigh", x) }.message)
        assertEquals(setOf("the-owner"), threads)
        assertEquals(listOf("the-owner"), begun, "its priority is set once, on the thread itself")
    }
}
