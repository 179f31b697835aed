package io.shoal.core

import io.shoal.core.wire.Fields
import io.shoal.core.wire.JsonArray
import io.shoal.core.wire.JsonNumber
import io.shoal.core.wire.Label
import io.shoal.core.wire.Manifest
import io.shoal.core.wire.Names
import io.shoal.core.wire.Window
import io.shoal.core.wire.parseJson
import java.io.File
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue

class LabelsTest {
    @Test
    fun `labels are taken or refused as every implementation does`() {
        val cases = (parseJson(File(repository, "wire/vectors/labels.json").readBytes()) as JsonArray).items.map { Fields(it, "labels.json") }
        assertTrue(cases.size >= 12)
        for (case in cases) {
            val manifest = manifest(case.string("task"), case.strings("names"), case.int("steps", 0L..9L).toInt())
            val y = numbers(case, "y")
            if (case.bool("fits")) {
                val fitting = fitLabels(y, manifest, "train")
                assertEquals(listOf(y.rows) + manifest.label.shape, fitting.shape, "$y in ${manifest.task}")
            } else {
                assertFailsWith<DataException>("$y in ${manifest.task}") { fitLabels(y, manifest, "train") }
            }
        }
    }

    @Test
    fun `windows without labels stand in a split with what says so`() {
        val x = Tensor.of(FloatArray(8), listOf(2, 1, 4))
        val none = Tensor.of(LongArray(0))
        val manifest = manifest("multi-label", listOf("a", "b"))
        assertTrue(noLabels(2, Label(DType.FLOAT32, listOf(3))).toFloatArray().all { it.isNaN() })
        val windows = Windows(x.take(IntArray(0)), none, x.take(IntArray(0)), none, x).forTask(manifest)
        val split = Split.of(windows, manifest.label, "windows", 0.0)
        assertEquals(Tensor.of(longArrayOf(-1, -1, -1, -1), listOf(2, 2)), split.y)
    }

    @Test
    fun `the split of inputs has every window and no label, and holds none out`() {
        val x = Tensor.of(FloatArray(12 * 4), listOf(12, 1, 4))
        val windows = Windows(x, Tensor.of(LongArray(12) { it % 2L }), x.take(IntArray(0)), Tensor.of(LongArray(0)), x.take(intArrayOf(0, 1)))
        val split = Split.of(windows, manifest("classification", listOf("a", "b")).label, "inputs", 0.5)
        assertEquals(Tensor.of(LongArray(14) { -1 }), split.y)
        assertEquals(Tensor.of(FloatArray(14)), split.places.getValue(Names.HOLDOUT))
    }
}

/** Return labels or samples of the vectors: type, shape, and the numbers under [key]. */
internal fun numbers(case: Fields, key: String = "numbers"): Tensor {
    val shape = case.sizes("shape")
    val numbers = case.list(key) { it, _ -> (it as JsonNumber).text.toDouble() }
    return when (case.string("dtype")) {
        "int64" -> Tensor.of(LongArray(numbers.size) { numbers[it].toLong() }, shape)
        else -> Tensor.of(FloatArray(numbers.size) { numbers[it].toFloat() }, shape)
    }
}

/** Return a bundle's manifest with this task and these names. */
internal fun manifest(task: String, names: List<String>, steps: Int = 0): Manifest {
    val window = Window(listOf("c"), 4, 1, steps = steps)
    return Manifest("m", 1, "a", emptyMap(), names, window, 2, emptyMap(), emptyList(), emptyMap(), emptyMap(), task = task)
}
