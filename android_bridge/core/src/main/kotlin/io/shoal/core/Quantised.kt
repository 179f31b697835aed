package io.shoal.core

import io.shoal.core.random.Generator
import io.shoal.core.wire.Names
import io.shoal.core.wire.compareUtf8

/**
 * Encoding of an update's change in eight bits per number (`wire/SPEC.md`, 'Updates in int8'; the
 * bytes are those of `wire/arrays/quantised.py`).
 */
internal object Quantised {
    /** Name of the encoding in check-ins and plans. */
    const val INT8 = "int8"

    /** Number of values that share a scale. */
    private const val BLOCK = 256

    /** Value for a block's greatest magnitude, or its negative. */
    private const val LARGEST = 127f

    /** Part of the seed of the rounding, which nothing else uses. */
    private const val DRAW = 0x18L

    /**
     * Return an update's tensors in the encoding that its plan asks for. In int8 two tensors
     * replace all `delta/NAME` of float32. If one of these has a value that is not finite, the
     * tensors are returned unchanged: the update is refused for that value. The rounding is random,
     * with the plan's [seed] and [deviceId] as its seed.
     */
    fun encoded(tensors: Tensors, encoding: String, seed: Long, deviceId: String): Tensors {
        val keys = tensors.keys.filter { Names.roleOf(it) == Names.DELTA && tensors.getValue(it).dtype == DType.FLOAT32 }
            .sortedWith(::compareUtf8)
        val changes = keys.map { tensors.getValue(it).toFloatArray() }
        if (encoding != INT8 || keys.isEmpty() || changes.any { change -> change.any { it.isNaN() || it.isInfinite() } }) return tensors
        val draws = Generator(seed, checksum(deviceId), DRAW)
        val values = Tensor.allocate(DType.INT8, listOf(changes.fold(0) { size, change -> Math.addExact(size, change.size) }))
        val bytes = values.data.duplicate()
        val scales = ArrayList<Float>()
        for (change in changes) {
            for (begin in change.indices step BLOCK) {
                val end = minOf(begin + BLOCK, change.size)
                var peak = 0f
                for (i in begin until end) peak = maxOf(peak, Math.abs(change[i]))
                val scale = peak / LARGEST
                scales += scale
                val drawn = draws.floats(end - begin)
                for (i in begin until end) {
                    val steps = if (scale > 0f) change[i] / scale else 0f
                    val rounded = Math.floor((steps + drawn[i - begin]).toDouble()).toFloat()
                    bytes.put(rounded.coerceIn(-LARGEST, LARGEST).toInt().toByte())
                }
            }
        }
        return (tensors - keys.toSet()) + mapOf(Names.INT8_VALUES to values, Names.INT8_SCALES to Tensor.of(scales.toFloatArray()))
    }
}
