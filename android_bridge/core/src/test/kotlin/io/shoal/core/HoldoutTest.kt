package io.shoal.core

import io.shoal.core.wire.Fields
import io.shoal.core.wire.JsonArray
import io.shoal.core.wire.Manifest
import io.shoal.core.wire.Train
import io.shoal.core.wire.Window
import io.shoal.core.wire.parseJson
import java.io.File
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertTrue

class HoldoutTest {
    @Test
    fun `the windows held out are those of every implementation`() {
        val cases = (parseJson(File(repository, "wire/vectors/holdout.json").readBytes()) as JsonArray).items.map { Fields(it, "holdout.json") }
        assertTrue(cases.size >= 60)
        for (case in cases) {
            val (y, share) = Pair(numbers(case.obj("y")), case.double("share"))
            val expected = case.list("held") { it, path -> Fields.countOf(it, path).toInt() }
            val mask = heldOut(y, share)
            assertEquals(expected, mask.indices.filter { mask[it] }, "of $y $share")
            assertEquals(expected.size, numHeldOut(y.rows, share))
        }
    }

    @Test
    fun `an epoch has the batches of every implementation`() {
        val cases = (parseJson(File(repository, "wire/vectors/epochs.json").readBytes()) as JsonArray).items.map { Fields(it, "epochs.json") }
        assertTrue(cases.size >= 10)
        for (case in cases) {
            val (labelled, unlabelled) = Pair(case.count("labelled").toInt(), case.count("unlabelled").toInt())
            val (size, epochs) = Pair(case.count("batch_size").toInt(), case.count("epochs").toInt())
            val train = Train(size, epochs, case.intOrNull("steps", Fields.POSITIVE), mostPasses = case.count("most_passes").toInt())
            val parts = batchRanges(labelled, size, 2)
            val batches = List(numTrainingBatches(train, labelled, unlabelled, 2).toInt()) { parts[it % parts.size].count() }
            assertEquals(case.list("sizes") { it, path -> Fields.countOf(it, path).toInt() }, batches, "$train of $labelled and $unlabelled")
        }
    }

    @Test
    fun `windows without labels are divided as every implementation divides them`() {
        val file = "without-labels.json"
        val cases = (parseJson(File(repository, "wire/vectors/$file").readBytes()) as JsonArray).items.map { Fields(it, file) }
        assertTrue(cases.size >= 10)
        for (case in cases) {
            val (train, test, more) = listOf("num_train", "num_test", "num_unlabelled").map { case.count(it).toInt() }
            val (trains, tests) = Pair(case.count("trains_on").toInt(), case.count("tests_on").toInt())
            assertEquals(Pair(trains, tests), splitUnlabelled(train, test, more), "of $train, $test and $more")
            val (x, testX, bare) = listOf(train, test, more).map { Tensor.of(FloatArray(it * 2) { i -> i.toFloat() }, listOf(it, 1, 2)) }
            val manifest = Manifest("m", 1, "a", emptyMap(), listOf("e"), Window(listOf("c"), 2, 1), 2, emptyMap(), emptyList(), emptyMap(), emptyMap(), task = "reconstruction")
            val windows = Windows(x, Tensor.of(LongArray(train)), testX, Tensor.of(LongArray(test)), bare).forTask(manifest)
            assertEquals(listOf(trains, tests, 0), listOf(windows.numTrain, windows.numTest, windows.numUnlabelled))
        }
    }

    @Test
    fun `windows are preferred in the order of every implementation`() {
        val cases = (parseJson(File(repository, "wire/vectors/ranks.json").readBytes()) as JsonArray).items.map { Fields(it, "ranks.json") }
        assertTrue(cases.size >= 8)
        for (case in cases) {
            val (labelled, unlabelled) = Pair(case.count("labelled").toInt(), case.count("unlabelled").toInt())
            val ranks = case.list("ranks") { it, path -> Fields.countOf(it, path).toInt() }
            assertEquals(ranks, Split.ranks(labelled, unlabelled).toList(), "of $labelled and $unlabelled")
        }
    }
}
