package io.shoal.core

import io.shoal.core.wire.Bundle
import io.shoal.core.wire.Fields
import io.shoal.core.wire.JsonString
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.Names
import io.shoal.core.wire.Plan
import io.shoal.core.wire.PublicKey
import io.shoal.core.wire.Update
import io.shoal.core.wire.decode
import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.decodeUpdate
import io.shoal.core.wire.digest
import io.shoal.core.wire.encodeTensors
import io.shoal.core.wire.encodeUpdate
import io.shoal.core.wire.parseJson
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.TestFactory
import java.io.File
import kotlin.test.Test
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertTrue

/** The last plan of `personal`, over the outputs of a real model's graphs in the Python client. */
class ClosingTest {
    private val folder = fromPython("closing")
    private val bundle by lazy {
        Bundle.unpack(File(folder, "bundle.zip").readBytes(), PublicKey.parse(File(folder, "trust.pem").readText()))
    }

    @TestFactory
    fun `keeps what Python keeps and says the same of it`(): List<DynamicTest> = cases().map { case ->
        DynamicTest.dynamicTest(case.name) {
            val (graphs, result) = carriedOut(case)
            assertEquals(graphs.recorded, graphs.number, "every run that Python made")
            val (expected, tensors) = decodeUpdate(File(case, "update.safetensors").readBytes())
            assertEquals(tensors, result.tensors)
            val numTrain = Fixture.windowsIn(File(case, "windows.safetensors")).numTrain.toLong()
            val update = Update("run", 1, 2, 0, "d", result.model, numTrain, result.numSteps, result.evaluated, result.trained, 7, 0.125)
            assertEquals(expected, update)
            assertContentEquals(File(case, "update.safetensors").readBytes(), encodeUpdate(update, result.tensors))
            assertContentEquals(File(case, "after.safetensors").readBytes(), encodeTensors(result.private))
        }
    }

    @Test
    fun `devices keep different candidates, tell which unless they are not asked, and nothing of their training`() {
        val results = cases().associate { it.name to carriedOut(it).second }
        val choices = results.mapNotNull { (_, result) -> result.tensors[CHOICE]?.toFloatArray()?.toList() }
        assertTrue(choices.toSet().size > 1 && choices.all { it.sum() == 1f }, "$choices")
        assertEquals(results.keys - "silent", results.filterValues { CHOICE in it.tensors }.keys)
        for ((name, result) in results) {
            assertEquals(Metrics(), result.trained, name)
            assertTrue(result.private.keys.any { Names.roleOf(it) == Names.PERSONAL }, name)
        }
        assertTrue(results.getValue("silent").tensors.isEmpty())
        assertEquals(results.getValue("all").private, results.getValue("silent").private, "it keeps the same all the same")
    }

    private fun cases() = File(folder, "cases").listFiles()!!.sorted()

    private fun carriedOut(case: File): Pair<Recorded, PlanResult> {
        val graphs = Recorded(case)
        val executor = Executor(bundle, graphs, Fixture.windowsIn(File(case, "windows.safetensors")))
        val model = decodeTensors(File(folder, "model.safetensors").readBytes()).tensors
        val result = executor.execute(decode<Plan>(File(case, "plan.json").readBytes()), model, emptyMap(), { error("blob $it") })
        return Pair(graphs, result)
    }

    /**
     * Graphs that return the outputs of the same run in Python, after a check that every input is
     * the same.
     */
    private class Recorded(private val case: File) : Graphs {
        override val maxBatch: Int? = null
        private val runs = Fields(parseJson("{\"runs\":${File(case, "runs.json").readText()}}".toByteArray()), "runs.json")
            .list("runs") { it, path -> Fields(it, path) }
        val recorded = runs.size
        var number = 0
            private set

        override fun run(graph: String, inputs: Tensors): Tensors {
            val expected = runs[number]
            assertEquals(expected.string("graph"), graph, "run $number")
            val digests = inputs.mapValues { (key, tensor) -> digest(encodeTensors(mapOf(key to tensor))) }
            assertEquals(expected.map("inputs") { it, _ -> (it as JsonString).value }, digests, "inputs of run $number, $graph")
            return decodeTensors(File(case, "outputs/${number++}.safetensors").readBytes()).tensors
        }

        override fun close() = Unit
    }

    private companion object {
        const val CHOICE = "response/choose.choice"
    }
}
