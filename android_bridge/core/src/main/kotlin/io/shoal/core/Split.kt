package io.shoal.core

import io.shoal.core.random.Generator
import io.shoal.core.wire.Label
import io.shoal.core.wire.Names

/**
 * Examples that a verb `evaluate` goes over: [x] and [y], and in [order] their indexes in the order
 * of batches.
 *
 * @property labelled true if they are training windows alone, each with an entry in the columns
 * @property places further inputs, one number for each example
 */
internal class Split private constructor(
    val x: Tensor,
    val y: Tensor,
    val order: IntArray,
    val labelled: Boolean,
    val places: Tensors,
) {
    companion object {
        /**
         * Return the split of this name (`train test holdout windows unlabelled inputs`) of a device's
         * windows, with labels like [label].
         */
        fun of(windows: Windows, label: Label, name: String, holdout: Double, most: Long = 0): Split = when (name) {
            "test" -> Split(windows.testX, windows.testY, shuffled(windows.numTest), false, emptyMap())
            "windows", "unlabelled", "inputs" -> everyWindow(windows, label, name, holdout, most)
            "holdout" -> {
                val mask = heldOut(windows.trainY, holdout)
                val order = shuffled(windows.numTrain).filter { mask[it] }.toIntArray()
                Split(windows.trainX, windows.trainY, order, true, emptyMap())
            }
            else -> Split(windows.trainX, windows.trainY, shuffled(windows.numTrain), true, emptyMap())
        }

        /**
         * Return the training windows, unless the name asks for windows without labels alone, and
         * after them the windows without labels, whose label is [noLabels]. In `inputs` no window
         * has a label. Windows of the rank [most] or above are left out, unless it is 0
         * (`wire/SPEC.md`, 'Windows').
         */
        private fun everyWindow(windows: Windows, label: Label, name: String, holdout: Double, most: Long): Split {
            val labelled = windows.numTrain
            val windowRanks = ranks(labelled, windows.numUnlabelled)
            val chosen = windowRanks.indices.filter { (most == 0L || windowRanks[it] < most) && (name != "unlabelled" || it >= labelled) }.toIntArray()
            val (first, others) = chosen.partition { it < labelled }
            // which windows are held out follows from their labels
            val mask = heldOut(windows.trainY, if (name == "inputs") 0.0 else holdout)
            val places = mapOf(
                Names.RANK to FloatArray(chosen.size) { windowRanks[chosen[it]].toFloat() },
                Names.COUNT to FloatArray(chosen.size) { chosen.size.toFloat() },
                Names.HOLDOUT to FloatArray(chosen.size) { if (chosen[it] < labelled && mask[chosen[it]]) 1f else 0f },
            )
            val unlabelled = windows.unlabelledX.take(IntArray(others.size) { others[it] - labelled })
            val x = concatenate(listOf(windows.trainX.take(first.toIntArray()), unlabelled))
            val labels = if (name == "inputs") noLabels(first.size, label) else windows.trainY.take(first.toIntArray())
            val y = concatenate(listOf(labels, noLabels(others.size, label)))
            return Split(x, y, shuffled(chosen.size), false, places.mapValues { Tensor.of(it.value) })
        }

        /**
         * Return the rank of each window, by which windows are preferred if not all can be used.
         * The ranks go in turn to [IN_TURN] windows with labels and one without, while there are
         * both.
         */
        fun ranks(numLabelled: Int, numUnlabelled: Int): IntArray {
            val (labelled, unlabelled) = Pair(spread(numLabelled), spread(numUnlabelled).map { numLabelled + it })
            val order = ArrayList<Int>(numLabelled + numUnlabelled)
            var next = 0
            for ((turn, window) in unlabelled.withIndex()) {
                while (next < minOf(numLabelled, (turn + 1) * IN_TURN)) order += labelled[next++]
                order += window
            }
            while (next < numLabelled) order += labelled[next++]
            return IntArray(order.size).also { ranks -> order.forEachIndexed { rank, window -> ranks[window] = rank } }
        }

        private fun spread(count: Int): List<Int> = (0 until count).sortedBy { ((it + 1) * GOLDEN) % 1.0 }

        private const val GOLDEN = 0.6180339887498949

        /** Number of windows with labels that are taken before each window without a label. */
        private const val IN_TURN = 3

        /** Return a random order: recordings are sorted by class, and a batch should not be. */
        private fun shuffled(count: Int): IntArray = Generator(0).permutation(count)
    }
}
