@file:JvmName("Padding")

package io.shoal.core

import io.shoal.core.wire.Window

/**
 * Windows of different lengths, each (channels, its own time) float32, as one tensor (n, channels + 1, [length]): zeros behind the shorter
 * ones, and a last channel that says of each sample whether it is one, 1 or 0. A bundle for such windows calls it `present`, and a phone
 * pads shorter ones to the bundle's length by itself.
 *
 * @throws DataException none, one that is no such window, or is longer
 */
public fun padded(windows: List<Tensor>, length: Int): Tensor {
    val channels = windows.firstOrNull()?.shape?.firstOrNull() ?: throw DataException("no windows")
    val made = Tensor.allocate(DType.FLOAT32, listOf(windows.size, channels + 1, length))
    val target = made.floats()
    for ((number, window) in windows.withIndex()) {
        if (window.dtype != DType.FLOAT32 || window.shape.size != 2 || window.shape[0] != channels || window.size == 0) {
            throw DataException("window $number is $window, and the first ${windows[0]}: expected float32[channels, time] of the same channels")
        }
        val time = window.shape[1]
        if (time > length) throw DataException("window $number has $time samples: expected at most $length; cut it, or pad to more")
        val source = window.floats()
        for (channel in 0 until channels) for (t in 0 until length) target.put(if (t < time) source.get() else 0f)
        for (t in 0 until length) target.put(if (t < time) 1f else 0f)
    }
    return made
}

/** Windows (n, channels, time) with zeros behind them up to the length of [window], if its last channel is [PRESENCE]; others as they are. */
internal fun toLength(x: Tensor, window: Window): Tensor {
    val fits = x.dtype == DType.FLOAT32 && x.shape.size == 3 && x.shape[1] == window.channels.size && window.channels.last() == PRESENCE
    if (!fits || x.shape[2] >= window.length) return x
    val made = Tensor.allocate(DType.FLOAT32, listOf(x.rows, x.shape[1], window.length))
    val (source, target, time) = Triple(x.floats(), made.floats(), x.shape[2])
    for (row in 0 until x.rows * x.shape[1]) for (t in 0 until window.length) target.put(if (t < time) source.get() else 0f)
    return made
}

/** The last channel of windows that may be padded. */
internal const val PRESENCE = "present"
