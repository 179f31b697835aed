package io.shoal.core

import io.shoal.core.wire.Fields
import io.shoal.core.wire.Json
import io.shoal.core.wire.JsonObject
import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.parseJson
import org.junit.jupiter.api.io.TempDir
import java.io.File
import kotlin.math.abs
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertNull
import kotlin.test.assertTrue

class StreamTest {
    @TempDir
    lateinit var folder: File

    private fun Fields.numbers(key: String): List<Double> =
        list(key) { it, at -> Fields(JsonObject(mapOf("n" to it)), at).double("n") }

    @Test
    fun `answers and sums are those of every implementation`() {
        val file = Fields(JsonObject(mapOf("cases" to parseJson(File(repository, "wire/vectors/stream.json").readBytes()))), "stream.json")
        val cases = file.list("cases") { it: Json, path -> Fields(it, path) }
        assertTrue(cases.size >= 6)
        for (case in cases) {
            val filter = StreamFilter(StreamSums("b", case.double("stays"), case.double("changes")), case.double("step_s"))
            for (step in case.list("steps") { it: Json, path -> Fields(it, path) }) {
                val p = step.numbers("p").map { it.toFloat() }.toFloatArray()
                val answer = filter.answer(step.double("begin_s"), p)
                for ((expected, value) in step.numbers("answer").zip(answer.toList())) assertEquals(expected, value.toDouble(), 1e-6)
                for ((expected, value) in step.numbers("sums").zip(listOf(filter.sums.stays, filter.sums.changes))) assertEquals(expected, value, 1e-6)
                assertEquals(step.double("stay"), filter.sums.stay(p.size), 1e-8)
            }
        }
    }

    @Test
    fun `a predictor answers the windows of a stream as Python does, also after a restart`() {
        val storage = FolderStorage(folder)
        FakeAggregator(storage).up().run {
            deliver(topics.device("phone", "release"), Fixture.release(1))
            offer()
        }
        val stream = decodeTensors(File(Fixture.folder, "stream.safetensors").readBytes()).tensors
        val (x, answers) = listOf("x", "answers").map(stream::getValue)
        val begins = stream.getValue("begins_s").toLongArray()
        var predictor = Predictor(storage, FakeLoader(), Fixture.keys)
        for (row in begins.indices) {
            val at = intArrayOf(row)
            if (row == begins.size / 2) { // there, a gap begins
                predictor.close()
                predictor = Predictor(FolderStorage(folder), FakeLoader(), Fixture.keys)
            }
            val answer = predictor.predictNext(x.take(at), begins[row].toDouble())
            assertEquals(listOf(1, 3), answer.shape)
            for ((expected, value) in answers.take(at).toFloatArray().zip(answer.toFloatArray())) assertEquals(expected, value, 1e-5f)
        }
        val own = predictor.use { it.predict(x) }
        assertTrue(own.toFloatArray().zip(answers.toFloatArray()).any { (one, other) -> abs(one - other) > 0.1 }, "it filters")
    }

    @Test
    fun `sums survive a restart, belong to their bundle, and go with what was learnt here`() {
        val bundle = "b".repeat(64)
        FolderStorage(folder).saveStream(StreamSums(bundle, 90.5, 9.5))
        val sums = FolderStorage(folder).stream(bundle)
        assertEquals(listOf(90.5, 9.5), listOf(sums.stays, sums.changes))
        assertEquals(110 / 17.0, sums.activity(4)!!, 1e-9)
        assertNull(FolderStorage(folder).stream("c".repeat(64)).activity(4))
        File(folder, "stream.json").appendText("x")
        assertNull(FolderStorage(folder).stream(bundle).activity(4))
        FolderStorage(folder).saveStream(sums)
        FolderStorage(folder).erase()
        assertNull(FolderStorage(folder).stream(bundle).activity(4))
    }
}
