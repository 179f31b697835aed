package io.shoal.core

import io.shoal.core.wire.Label
import io.shoal.core.wire.Manifest
import io.shoal.core.wire.Tasks

/**
 * Labels as the task of a bundle takes them (`wire/SPEC.md`, 'Labels'). Of no window there may be any. [split] begins the error.
 *
 * @throws DataException they are labels of another task, or of a class or a name that the bundle does not have
 */
internal fun fitLabels(y: Tensor, manifest: Manifest, split: String): Tensor {
    val label = manifest.label
    if (y.rows == 0) return Tensor.allocate(label.dtype, listOf(0) + label.shape)
    if (y.dtype != label.dtype || y.shape.drop(1) != label.shape) {
        throw DataException("$split labels are $y, and ${manifest.task} takes ${label.dtype}${listOf(y.rows) + label.shape}")
    }
    val unknown = when (manifest.task) {
        Tasks.SEQUENCE -> y.toLongArray().firstOrNull { it != NO_LABEL && it !in manifest.classes.indices }
        Tasks.MULTI_LABEL -> y.toLongArray().firstOrNull { it !in 0..1 }
        Tasks.REGRESSION -> y.toFloatArray().firstOrNull { !it.isFinite() }
        else -> y.toLongArray().firstOrNull { it !in manifest.classes.indices }
    }
    if (unknown != null) throw DataException("$split labels hold $unknown, ${expected(manifest)}")
    if (manifest.task == Tasks.SEQUENCE) checkSteps(y, split)
    return y
}

/** Refuses a window of which no step has a label. */
private fun checkSteps(y: Tensor, split: String) {
    val (labels, steps) = Pair(y.toLongArray(), y.shape[1])
    val empty = (0 until y.rows).firstOrNull { window -> (0 until steps).all { labels[window * steps + it] == NO_LABEL } }
    if (empty != null) throw DataException("$split labels: no step of window $empty has one")
}

private fun expected(manifest: Manifest) = when (manifest.task) {
    Tasks.SEQUENCE -> "sequence takes classes 0..${manifest.classes.size - 1}, and $NO_LABEL for a step without a label"
    Tasks.MULTI_LABEL -> "multi-label takes 1 where a name is there, else 0"
    Tasks.REGRESSION -> "regression takes finite numbers"
    else -> "bundle ${manifest.name} has classes 0..${manifest.classes.size - 1}"
}

/** What stands for the labels of so many windows that nobody has labelled. */
internal fun noLabels(count: Int, label: Label): Tensor {
    val shape = listOf(count) + label.shape
    val size = shape.fold(1, Math::multiplyExact)
    return if (label.dtype == DType.FLOAT32) Tensor.of(FloatArray(size) { Float.NaN }, shape) else Tensor.of(LongArray(size) { NO_LABEL }, shape)
}
