package io.shoal.core

import io.shoal.core.random.Generator
import io.shoal.core.wire.Names
import io.shoal.core.wire.compareUtf8

/** The change that an update carries, in eight bits a number (`wire/SPEC.md`, 'Updates in int8'; the same bytes as `wire/arrays/quantised.py`). */
internal object Quantised {
    /** The name of the encoding, as check-ins and plans have it. */
    const val INT8 = "int8"

    /** So many numbers share a scale. */
    private const val BLOCK = 256

    /** A block's greatest magnitude becomes this, or its negative. */
    private const val LARGEST = 127f

    /** In the seed of the rounding: it is drawn for nothing else. */
    private const val DRAW = 0x18L

    /**
     * An update's tensors in the encoding that its plan asks for. In int8 two tensors take the place of all `delta/NAME` of float32. If one of
     * these holds a value that is not finite, the update stays as it is: it is refused for that value. The rounding is drawn from the plan's
     * [seed] and from [deviceId].
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
