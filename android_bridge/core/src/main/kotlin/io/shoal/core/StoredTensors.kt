package io.shoal.core

import io.shoal.core.wire.Names
import io.shoal.core.wire.TensorSpec

/**
 * Of what the device has [stored] of its own in a run, what a plan goes on from (`edge_client/core/kept.py`): [private] tensors as the manifest
 * says them, since another version of the bundle may have others, and columns of as many windows as the device trains on.
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
