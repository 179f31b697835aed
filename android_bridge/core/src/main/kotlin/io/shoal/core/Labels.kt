package io.shoal.core

import io.shoal.core.wire.Label
import io.shoal.core.wire.Manifest
import io.shoal.core.wire.Tasks

/**
 * Return labels as the task of a bundle takes them (`wire/SPEC.md`, 'Labels'). Without windows,
 * labels of any task are accepted. [split] is the beginning of the error's text.
 *
 * @throws DataException the labels are of another task, or have a class or name that the bundle
 *   does not have
 */
internal fun fitLabels(y: Tensor, manifest: Manifest, split: String): Tensor {
    val label = manifest.label
    if (y.rows == 0) return Tensor.allocate(label.dtype, listOf(0) + label.shape)
    if (y.dtype != label.dtype || y.shape.drop(1) != label.shape) {
        throw DataException("$split labels must be ${label.dtype}${listOf(y.rows) + label.shape} for ${manifest.task}, got $y")
    }
    val unknown = when (manifest.task) {
        Tasks.SEQUENCE -> y.toLongArray().firstOrNull { it != NO_LABEL && it !in manifest.classes.indices }
        Tasks.MULTI_LABEL -> y.toLongArray().firstOrNull { it !in 0..1 }
        Tasks.REGRESSION -> y.toFloatArray().firstOrNull { !it.isFinite() }
        else -> y.toLongArray().firstOrNull { it !in manifest.classes.indices }
    }
    if (unknown != null) throw DataException("$split labels must be ${expected(manifest)}, got $unknown")
    if (manifest.task == Tasks.SEQUENCE) checkSteps(y, split)
    return y
}

/** Check that every window has a step with a label. */
private fun checkSteps(y: Tensor, split: String) {
    val (labels, steps) = Pair(y.toLongArray(), y.shape[1])
    val empty = (0 until y.rows).firstOrNull { window -> (0 until steps).all { labels[window * steps + it] == NO_LABEL } }
    if (empty != null) throw DataException("$split labels: no step of window $empty has a label")
}

private fun expected(manifest: Manifest) = when (manifest.task) {
    Tasks.SEQUENCE -> "from 0 to ${manifest.classes.size - 1}, or $NO_LABEL for a step without a label, for sequence"
    Tasks.MULTI_LABEL -> "1 where a name applies, else 0, for multi-label"
    Tasks.REGRESSION -> "finite numbers for regression"
    else -> "from 0 to ${manifest.classes.size - 1}, the classes of bundle ${manifest.name}"
}

/** Return the labels that stand for [count] windows without labels. */
internal fun noLabels(count: Int, label: Label): Tensor {
    val shape = listOf(count) + label.shape
    val size = shape.fold(1, Math::multiplyExact)
    return if (label.dtype == DType.FLOAT32) Tensor.of(FloatArray(size) { Float.NaN }, shape) else Tensor.of(LongArray(size) { NO_LABEL }, shape)
}
