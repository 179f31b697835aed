package io.shoal.core

import io.shoal.core.wire.Names
import io.shoal.core.wire.TensorSpec

/**
 * Return those of the device's [stored] tensors that a plan can start from
 * (`edge_client/core/kept.py`): tensors that the manifest calls [private], in its types and shapes,
 * since another version of the bundle may have others; and columns with one row for each window
 * that the device trains on.
 */
internal fun usable(private: List<TensorSpec>, stored: Tensors, numTrain: Int): Tensors {
    val layouts = private.associate { it.key to it.layout }
    return stored.filter { (key, tensor) ->
        when (Names.roleOf(key)) {
            Names.PRIVATE -> layouts[key]?.let { it.dtype == tensor.dtype && it.shape == tensor.shape } ?: false
            Names.COLUMN -> tensor.shape.firstOrNull() == numTrain
            else -> false
        }
    }
}
