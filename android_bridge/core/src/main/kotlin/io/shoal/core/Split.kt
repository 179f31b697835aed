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
        /** The split of this name (`train test holdout windows`) of a device's windows, with such a [label]. */
        fun of(windows: Windows, label: Label, name: String, holdout: Double): Split = when (name) {
            "test" -> Split(windows.testX, windows.testY, shuffled(windows.numTest), false, emptyMap())
            "windows" -> everyWindow(windows, label, holdout)
            "holdout" -> {
                val mask = heldOut(windows.numTrain, holdout)
                val order = shuffled(windows.numTrain).filter { mask[it] }.toIntArray()
                Split(windows.trainX, windows.trainY, order, true, emptyMap())
            }
            else -> Split(windows.trainX, windows.trainY, shuffled(windows.numTrain), true, emptyMap())
        }

        /** The training windows and after them those without labels, whose [label] is [noLabels] (`wire/SPEC.md`, 'Windows'). */
        private fun everyWindow(windows: Windows, label: Label, holdout: Double): Split {
            val count = windows.numTrain + windows.numUnlabelled
            val mask = heldOut(windows.numTrain, holdout)
            val places = mapOf(
                Names.RANK to ranks(windows.numTrain, windows.numUnlabelled).let { made -> FloatArray(count) { made[it].toFloat() } },
                Names.COUNT to FloatArray(count) { count.toFloat() },
                Names.HELD to FloatArray(count) { if (it < mask.size && mask[it]) 1f else 0f },
            )
            val x = concatenate(listOf(windows.trainX, windows.unlabelledX))
            val y = concatenate(listOf(windows.trainY, noLabels(windows.numUnlabelled, label)))
            return Split(x, y, shuffled(count), false, places.mapValues { Tensor.of(it.value) })
        }

        /** In which order windows are preferred where not all can be used: the rank of each, those with labels first. */
        fun ranks(numLabelled: Int, numUnlabelled: Int): IntArray {
            val made = IntArray(numLabelled + numUnlabelled)
            val order = spread(numLabelled) + spread(numUnlabelled).map { numLabelled + it }
            order.forEachIndexed { rank, window -> made[window] = rank }
            return made
        }

        private fun spread(count: Int): List<Int> = (0 until count).sortedBy { ((it + 1) * GOLDEN) % 1.0 }

        private const val GOLDEN = 0.6180339887498949

        /** Recordings are sorted by class; a batch should not be. */
        private fun shuffled(count: Int): IntArray = Generator(0).permutation(count)
    }
}
