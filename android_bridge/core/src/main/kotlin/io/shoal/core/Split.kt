package io.shoal.core

import io.shoal.core.random.Generator
import io.shoal.core.wire.Label
import io.shoal.core.wire.Names

/**
 * The examples that a verb `evaluate` goes over: [x] and [y], and in [order] which of them, in the order of batches. [labelled]: they are
 * training windows alone, each with its entry in the columns of these. [places]: further inputs, a number for each example.
 */
internal class Split private constructor(
    val x: Tensor,
    val y: Tensor,
    val order: IntArray,
    val labelled: Boolean,
    val places: Tensors,
) {
    companion object {
        /** The split of this name (`train test holdout windows unlabelled`) of a device's windows, with such a [label]. */
        fun of(windows: Windows, label: Label, name: String, holdout: Double, most: Long = 0): Split = when (name) {
            "test" -> Split(windows.testX, windows.testY, shuffled(windows.numTest), false, emptyMap())
            "windows", "unlabelled" -> everyWindow(windows, label, name, holdout, most)
            "holdout" -> {
                val mask = heldOut(windows.trainY, holdout)
                val order = shuffled(windows.numTrain).filter { mask[it] }.toIntArray()
                Split(windows.trainX, windows.trainY, order, true, emptyMap())
            }
            else -> Split(windows.trainX, windows.trainY, shuffled(windows.numTrain), true, emptyMap())
        }

        /** The training windows, unless only those without labels are asked for, and after them these, whose [label] is [noLabels]; without
         * those of the rank [most] or above, unless it is 0 (`wire/SPEC.md`, 'Windows'). */
        private fun everyWindow(windows: Windows, label: Label, name: String, holdout: Double, most: Long): Split {
            val labelled = windows.numTrain
            val made = ranks(labelled, windows.numUnlabelled)
            val chosen = made.indices.filter { (most == 0L || made[it] < most) && (name == "windows" || it >= labelled) }.toIntArray()
            val (first, others) = chosen.partition { it < labelled }
            val mask = heldOut(windows.trainY, holdout)
            val places = mapOf(
                Names.RANK to FloatArray(chosen.size) { made[chosen[it]].toFloat() },
                Names.COUNT to FloatArray(chosen.size) { chosen.size.toFloat() },
                Names.HELD to FloatArray(chosen.size) { if (chosen[it] < labelled && mask[chosen[it]]) 1f else 0f },
            )
            val unlabelled = windows.unlabelledX.take(IntArray(others.size) { others[it] - labelled })
            val x = concatenate(listOf(windows.trainX.take(first.toIntArray()), unlabelled))
            val y = concatenate(listOf(windows.trainY.take(first.toIntArray()), noLabels(others.size, label)))
            return Split(x, y, shuffled(chosen.size), false, places.mapValues { Tensor.of(it.value) })
        }

        /** In which order windows are preferred where not all can be used: the rank of each. Of the first ranks, [IN_TURN] go to windows with
         * labels and one to a window without, in turn, as far as there are such. */
        fun ranks(numLabelled: Int, numUnlabelled: Int): IntArray {
            val (labelled, unlabelled) = Pair(spread(numLabelled), spread(numUnlabelled).map { numLabelled + it })
            val order = ArrayList<Int>(numLabelled + numUnlabelled)
            var next = 0
            for ((turn, window) in unlabelled.withIndex()) {
                while (next < minOf(numLabelled, (turn + 1) * IN_TURN)) order += labelled[next++]
                order += window
            }
            while (next < numLabelled) order += labelled[next++]
            return IntArray(order.size).also { made -> order.forEachIndexed { rank, window -> made[window] = rank } }
        }

        private fun spread(count: Int): List<Int> = (0 until count).sortedBy { ((it + 1) * GOLDEN) % 1.0 }

        private const val GOLDEN = 0.6180339887498949

        /** So many windows with labels come before each one without. */
        private const val IN_TURN = 3

        /** Recordings are sorted by class; a batch should not be. */
        private fun shuffled(count: Int): IntArray = Generator(0).permutation(count)
    }
}
