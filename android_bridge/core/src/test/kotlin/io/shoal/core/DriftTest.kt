package io.shoal.core

import io.shoal.core.wire.CheckIn
import io.shoal.core.wire.Fields
import io.shoal.core.wire.Json
import io.shoal.core.wire.JsonObject
import io.shoal.core.wire.decode
import io.shoal.core.wire.parseJson
import org.junit.jupiter.api.io.TempDir
import java.io.File
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertTrue

class DriftTest {
    @TempDir
    lateinit var folder: File

    private val vectors = Fields(parseJson(File(repository, "wire/vectors/drift.json").readBytes()) as JsonObject, "drift.json")

    private fun numbers(row: Json, path: String): DoubleArray =
        Fields(JsonObject(mapOf("row" to row)), path).list("row") { it, at -> Fields(JsonObject(mapOf("n" to it)), at).double("n") }.toDoubleArray()

    @Test
    fun `distances are those of every implementation`() {
        val pairs = vectors.list("pairs") { it, path -> Fields(it, path) }
        assertTrue(pairs.size >= 5)
        for (pair in pairs) {
            val (one, other) = pair.list("one", item = ::numbers) to pair.list("other", item = ::numbers)
            assertEquals(pair.double("distance"), Drift.distance(one, other), 1e-9)
            assertEquals(pair.bool("moved"), Drift.hasMoved(one, other))
        }
    }

    @Test
    fun `features are those of every implementation`() {
        val rows = vectors.list("windows", item = ::numbers)
        val x = Tensor.of(FloatArray(rows.size * 8) { rows[it / 8][it % 8].toFloat() }, listOf(rows.size, 2, 4))
        val expected = vectors.list("features", item = ::numbers)
        assertEquals(expected.size, rows.size)
        for ((row, features) in expected.zip(Drift.features(x))) {
            for (i in row.indices) assertEquals(row[i], features[i], 1e-6)
        }
    }

    @Test
    fun `a check-in says that the data have moved`() {
        val device = FakeAggregator(FolderStorage(folder), health = { Health(moved = true) })
        device.up()
        assertTrue(decode<CheckIn>(device.sent("check-in").first()).moved)
    }
}
