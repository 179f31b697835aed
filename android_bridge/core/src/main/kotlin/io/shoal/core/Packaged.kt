package io.shoal.core

import io.shoal.core.wire.Bundle
import io.shoal.core.wire.Limits
import io.shoal.core.wire.Names
import io.shoal.core.wire.PublicKey
import io.shoal.core.wire.checkLayout
import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.digest
import io.shoal.core.wire.encodeTensors

/** A model that an app brings along: it answers until the fleet has given this device one. */
@InternalShoalApi
public object Packaged {
    /** What [Current.run] says of such a model. A run's name is made at random, and never this. */
    public const val RUN: String = "packaged"

    /**
     * Puts a bundle's model into use, unless one of the fleet is. Whether another model is in use from now on.
     *
     * @param payload the bundle; one of the [trusted] keys must have signed it
     * @param weights the model's tensors (`shoal models export --to NAME.safetensors`); null: the bundle's initial values. What a bundle
     *   receives beside them, and neither names, starts at zero.
     * @throws WireException the bundle is not to be trusted, or the tensors are not its model's
     */
    public fun install(storage: Storage, payload: ByteArray, weights: ByteArray?, trusted: List<PublicKey>): Boolean {
        val held = storage.current()
        if (held != null && held.run != RUN) return false
        val bundle = Bundle.unpack(payload, trusted)
        val model = encodeTensors(tensors(bundle, weights))
        val name = digest(model)
        if (held != null && held.bundle == bundle.digest && held.model == name) return false
        storage.putBlob(bundle.digest, payload)
        storage.putBlob(name, model)
        storage.saveCurrent(Current(bundle.digest, name, RUN, emptyMap()))
        return true
    }

    private fun tensors(bundle: Bundle, weights: ByteArray?): Tensors {
        val specs = bundle.manifest.received()
        val given = weights?.let { decodeTensors(it, Limits.RECEIVED).tensors }.orEmpty()
        val made = specs.associate { it.key to (given[it.key] ?: bundle.initial[it.key] ?: Tensor.allocate(it.dtype, it.shape)) }
        val what = "packaged model of bundle ${bundle.manifest.name}"
        if (weights != null) {
            val own = specs.filter { it.role != Names.RECEIVED }.map { it.key }
            (own - given.keys).firstOrNull()?.let { throw WrongLayout("$what: its weights have no tensor $it") }
        }
        checkLayout(made + given, specs.map { it.layout }, what)
        for ((key, tensor) in made) {
            if (tensor.dtype == DType.FLOAT32 && tensor.toFloatArray().any { !it.isFinite() }) {
                throw WrongLayout("$what: $key is not finite")
            }
        }
        return made
    }
}
