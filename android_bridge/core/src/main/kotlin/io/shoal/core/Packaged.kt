package io.shoal.core

import io.shoal.core.wire.Bundle
import io.shoal.core.wire.Limits
import io.shoal.core.wire.Names
import io.shoal.core.wire.PublicKey
import io.shoal.core.wire.checkLayout
import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.digest
import io.shoal.core.wire.encodeTensors

/** Model that an app has among its assets. It answers until the device has a model of the fleet. */
@InternalShoalApi
public object Packaged {
    /** [Current.run] of such a model. A run's own name is random, and never this one. */
    public const val RUN: String = "packaged"

    /**
     * Return true if only an app's model can answer: no model is in use, or that of an app whose
     * files are gone.
     */
    public fun isMissing(storage: Storage): Boolean =
        storage.current().let { it == null || (it.run == RUN && !(storage.hasBlob(it.bundle) && storage.hasBlob(it.model))) }

    /**
     * Take a bundle's model into use, unless a model of the fleet is in use. Return true if it was
     * stored.
     *
     * @param payload the bundle; one of the [trusted] keys must have signed it
     * @param weights the model's tensors (`shoal models export --to NAME.safetensors`); null: the
     *   bundle's initial values. Tensors that a bundle receives beside them, and neither names,
     *   start at zero.
     * @throws WireException the bundle is not trusted, or the tensors are not its model's
     */
    public fun install(storage: Storage, payload: ByteArray, weights: ByteArray?, trusted: List<PublicKey>): Boolean {
        val current = storage.current()
        if (current != null && current.run != RUN) return false
        val bundle = Bundle.unpack(payload, trusted)
        val model = encodeTensors(tensors(bundle, weights))
        val name = digest(model)
        if (!isMissing(storage) && current?.bundle == bundle.digest && current.model == name) return false
        storage.putBlob(bundle.digest, payload)
        storage.putBlob(name, model)
        storage.saveCurrent(Current(bundle.digest, name, RUN, emptyMap()))
        return true
    }

    private fun tensors(bundle: Bundle, weights: ByteArray?): Tensors {
        val specs = bundle.manifest.received()
        val weightTensors = weights?.let { decodeTensors(it, Limits.RECEIVED).tensors }.orEmpty()
        val modelTensors = specs.associate { it.key to (weightTensors[it.key] ?: bundle.initial[it.key] ?: Tensor.allocate(it.dtype, it.shape)) }
        val what = "packaged model of bundle ${bundle.manifest.name}"
        if (weights != null) {
            val required = specs.filter { it.role != Names.RECEIVED }.map { it.key }
            (required - weightTensors.keys).firstOrNull()?.let { throw WrongLayoutException("$what: its weights lack the tensor $it") }
        }
        checkLayout(modelTensors + weightTensors, specs.map { it.layout }, what)
        for ((key, tensor) in modelTensors) {
            if (tensor.dtype == DType.FLOAT32 && tensor.toFloatArray().any { !it.isFinite() }) {
                throw WrongLayoutException("$what: tensor $key must be finite")
            }
        }
        return modelTensors
    }
}
