package io.shoal.core

import io.shoal.core.random.Noise
import io.shoal.core.wire.Annotate
import io.shoal.core.wire.Bundle
import io.shoal.core.wire.Evaluate
import io.shoal.core.wire.Fields
import io.shoal.core.wire.JsonArray
import io.shoal.core.wire.JsonNumber
import io.shoal.core.wire.Plan
import io.shoal.core.wire.Respond
import io.shoal.core.wire.TensorSpec
import io.shoal.core.wire.Train
import io.shoal.core.wire.Update
import io.shoal.core.wire.decode
import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.decodeUpdate
import io.shoal.core.wire.encodeTensors
import io.shoal.core.wire.encodeUpdate
import io.shoal.core.wire.parseJson
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.TestFactory
import java.io.File
import java.util.Random
import kotlin.math.sqrt
import kotlin.test.Test
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue

class ExecutorTest {
    @TestFactory
    fun `makes the update that Python makes`(): List<DynamicTest> = File(Fixture.folder, "cases").listFiles()!!.sorted().map { case ->
        DynamicTest.dynamicTest(case.name) {
            val plan = decode<Plan>(File(case, "plan.json").readBytes())
            val listed = (parseJson(File(case, "noise.json").readBytes()) as JsonArray).items
            val noise = listed.map { (it as JsonNumber).text.toDouble() }.iterator()
            val executor = Executor(Fixture.bundle, FakeGraphs(), Fixture.windows, Noise { noise.next() })
            val before = decodeTensors(File(case, "before.safetensors").readBytes()).tensors
            val result = executor.execute(plan, tensors(plan.model), before, ::tensors)
            val (expected, tensors) = decodeUpdate(File(case, "update.safetensors").readBytes())
            assertEquals(tensors, result.tensors)
            val update = Update(
                plan.runId, plan.epoch, plan.round, plan.attempt, plan.deviceId, result.model, Fixture.windows.numTrain.toLong(), result.numSteps,
                result.evaluated, result.trained, 7, 0.125,
            )
            assertEquals(expected, update)
            assertContentEquals(File(case, "update.safetensors").readBytes(), encodeUpdate(update, result.tensors))
            assertContentEquals(File(case, "after.safetensors").readBytes(), encodeTensors(result.private))
        }
    }

    @Test
    fun `no batch is above what the graphs take`() {
        val graphs = FakeGraphs(maxBatch = 6)
        val executor = Executor(Fixture.bundle, graphs, Fixture.windows)
        val model = decodeTensors(Fixture.model).tensors
        val verbs = listOf(Evaluate(), Evaluate("train"), Annotate("weigh", "weight"), Train(5), Train(6))
        val steps = ArrayList<Pair<Long, Long>>()
        val result = executor.execute(Fixture.plan(verbs = verbs), model, emptyMap(), ::tensors, { step, of -> steps += Pair(step, of) })
        assertEquals((1..result.numSteps).map { Pair(it, result.numSteps) }, steps, "how far the training is")
        executor.predict(model, emptyMap(), Fixture.windows.trainX)
        assertEquals(6, graphs.batches.max())
        val error = assertFailsWith<DataException> {
            executor.execute(Fixture.plan(verbs = listOf(Train(8))), model, emptyMap(), ::tensors)
        }
        assertTrue("at most 6" in error.message!!)
    }

    @Test
    fun `one example can be predicted`() {
        val x = Fixture.windows.testX.take(intArrayOf(3))
        val executor = Executor(Fixture.bundle, FakeGraphs(), Fixture.windows)
        assertEquals(listOf(1, 3), executor.predict(decodeTensors(Fixture.model).tensors, emptyMap(), x).shape)
    }

    @Test
    fun `a model of another layout is refused`() {
        val executor = Executor(Fixture.bundle, FakeGraphs(), Fixture.windows)
        assertFailsWith<WrongLayoutException> { executor.execute(Fixture.plan(), emptyMap(), emptyMap(), ::tensors) }
    }

    @Test
    fun `what was kept of other windows or by another bundle does not stand in the way`() {
        val model = decodeTensors(Fixture.model).tensors
        val executor = Executor(Fixture.bundle, FakeGraphs(), Fixture.windows, { 0.5 })
        val odd = mapOf(
            "column/weight" to Tensor.of(FloatArray(40)), "private/p" to Tensor.of(FloatArray(7)), "private/q" to Tensor.scalar(1f),
            "shared/w" to Tensor.scalar(1f),
        )
        val plan = Fixture.plan(verbs = listOf(Train(8), Evaluate("train", "survey")))
        assertEquals(executor.execute(plan, model, emptyMap(), ::tensors).tensors, executor.execute(plan, model, odd, ::tensors).tensors)
        assertFailsWith<MalformedException> { executor.execute(Fixture.plan(verbs = listOf(Annotate("weigh", "x"))), model, emptyMap(), ::tensors) }
    }

    @Test
    fun `what a plan goes on from of what is stored is that of every implementation`() {
        val vectors = Fields(parseJson(File(repository, "wire/vectors/private.json").readBytes()), "private.json")
        fun dtype(name: String) = DType.entries.first { it.manifestName == name }
        val (numTrain, specs) = vectors.obj("about").run {
            Pair(
                count("num_train").toInt(),
                list("tensors") { it, path ->
                    Fields(it, path).run { TensorSpec(string("name"), string("role"), dtype(string("dtype")), sizes("shape")) }
                },
            )
        }
        val cases = vectors.list("cases") { it, path -> Fields(it, path) }
        assertTrue(cases.size >= 14)
        for (case in cases) {
            val stored = case.list("stored") { it, path -> Fields(it, path) }
                .associate { it.string("name") to Tensor.allocate(dtype(it.string("dtype")), it.sizes("shape")) }
            assertEquals(case.strings("used"), usable(specs, stored, numTrain).keys.toList(), case.string("name"))
        }
    }

    @Test
    fun `a device without training windows makes an empty column`() {
        val (x, y) = Pair(Fixture.windows.trainX, Fixture.windows.trainY)
        val none = Windows(x.take(IntArray(0)), y.take(IntArray(0)), Fixture.windows.testX, Fixture.windows.testY)
        val plan = Fixture.plan(verbs = listOf(Annotate("weigh", "weight"), Evaluate("train", "survey")))
        val result = Executor(Fixture.bundle, FakeGraphs(), none).execute(plan, decodeTensors(Fixture.model).tensors, emptyMap(), ::tensors)
        assertEquals(Tensor.of(FloatArray(0)), result.private.getValue("column/weight"))
        assertTrue(result.tensors.isEmpty())
    }

    @Test
    fun `inputs of respond are of the type that the bundle's window has`() {
        val graphs = object : Graphs {
            override val maxBatch: Int? = null
            override fun run(graph: String, inputs: Tensors): Tensors =
                mapOf("output/probabilities" to Tensor.allocate(DType.FLOAT32, listOf(inputs.getValue("batch/x").rows, 3)))
            override fun close() = Unit
        }
        val ofIds = Bundle.unpack(File(Fixture.folder, "ids.zip").readBytes(), Fixture.keys)
        val (ids, numbers) = Pair(DType.INT64, DType.FLOAT32).let { (i, f) -> Pair(Tensor.allocate(i, SENT), Tensor.allocate(f, SENT)) }
        val none = ids.take(IntArray(0)).let { Windows(it, Tensor.of(longArrayOf()), it, Tensor.of(longArrayOf())) }
        fun answer(bundle: Bundle, windows: Windows, x: Tensor) = Executor(bundle, graphs, windows)
            .execute(Fixture.plan(verbs = listOf(Respond("0".repeat(64)))), decodeTensors(Fixture.model).tensors, emptyMap(), { mapOf("x" to x) })
            .tensors.getValue("response/predict").shape
        assertEquals(listOf(3, 3), answer(ofIds, none, ids))
        assertEquals(listOf(3, 3), answer(Fixture.bundle, Fixture.windows, numbers))
        assertFailsWith<MalformedException> { answer(ofIds, none, numbers) }
        assertFailsWith<MalformedException> { answer(Fixture.bundle, Fixture.windows, ids) }
        val outside = Tensor.of(LongArray(24) { it.toLong() }, SENT)
        assertTrue("must hold ids from 0 to 8" in assertFailsWith<DataException> { answer(ofIds, none, outside) }.message!!)
    }

    @Test
    fun `windows that do not fit the bundle are refused`() {
        val (x, y) = Pair(Tensor.allocate(DType.FLOAT32, listOf(3, 2, 5)), Tensor.of(longArrayOf(0, 1, 2)))
        assertFailsWith<DataException> { Executor(Fixture.bundle, FakeGraphs(), Windows(x, y, x, y)) }
        val (fits, unknown) = Pair(Tensor.allocate(DType.FLOAT32, listOf(3, 2, 4)), Tensor.of(longArrayOf(0, 1, 3)))
        assertFailsWith<DataException> { Executor(Fixture.bundle, FakeGraphs(), Windows(fits, unknown, fits, unknown)) }
    }

    @Test
    fun `clipping never leaves more than the norm and rounds towards zero`() {
        val random = Random(3)
        repeat(300) {
            val update = FloatArray(1 + random.nextInt(200)) { (random.nextGaussian() * Math.pow(10.0, random.nextInt(8) - 4.0)).toFloat() }
            val norm = Math.pow(10.0, random.nextInt(6) - 4.0)
            val clipped = clip(update, norm)
            assertTrue(norm(clipped) <= norm)
            if (norm(update) <= norm) assertContentEquals(update, clipped) else assertTrue(norm(clipped) > norm * (1 - 1e-6))
            for (i in update.indices) assertTrue(Math.abs(clipped[i]) <= Math.abs(update[i]) && clipped[i] * update[i] >= 0)
        }
    }

    @Test
    fun `every example is in one batch and none is too small`() {
        for (n in 1..80) for (size in 2..20) {
            val ranges = batchRanges(n, size, 2)
            assertEquals((0 until n).toList(), ranges.flatten())
            assertTrue(n == 1 || ranges.all { it.count() in 2..size + 1 })
            if (n >= size && size > 2) assertTrue(ranges.all { it.count() in size / 2..size })
        }
        assertEquals(emptyList(), batchRanges(0, 8, 2))
    }

    private companion object {
        val SENT = listOf(3, 2, 4)
    }

    private fun norm(numbers: FloatArray) = sqrt(numbers.sumOf { it.toDouble() * it })

    private fun tensors(name: String) = decodeTensors(Fixture.blob(name)).tensors
}
