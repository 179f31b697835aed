@file:JvmName("Padding")

package io.shoal.core

import io.shoal.core.wire.Window

/**
 * Return windows of different lengths, each (channels, its own time) float32, as one tensor (n,
 * channels + 1, [length]). Shorter windows end with zeros. The last channel is 1 for each sample
 * and 0 for each zero after them. A bundle for such windows calls that channel `present`, and a
 * phone pads its windows to the bundle's length by itself.
 *
 * @throws DataException there are no windows, or one of them is of another kind or too long
 */
public fun padded(windows: List<Tensor>, length: Int): Tensor {
    val channels = windows.firstOrNull()?.shape?.firstOrNull() ?: throw DataException("there are no windows")
    val paddedWindows = Tensor.allocate(DType.FLOAT32, listOf(windows.size, channels + 1, length))
    val target = paddedWindows.floats()
    for ((number, window) in windows.withIndex()) {
        if (window.dtype != DType.FLOAT32 || window.shape.size != 2 || window.shape[0] != channels || window.size == 0) {
            throw DataException("all windows must be float32[channels, time] with the same channels; window $number is $window, and the first is ${windows[0]}")
        }
        val time = window.shape[1]
        if (time > length) throw DataException("window $number must have at most $length samples, got $time; cut it, or pad to more")
        val source = window.floats()
        for (channel in 0 until channels) for (t in 0 until length) target.put(if (t < time) source.get() else 0f)
        for (t in 0 until length) target.put(if (t < time) 1f else 0f)
    }
    return paddedWindows
}

/**
 * Return windows (n, channels, time) with zeros after them up to the length of [window], if its
 * last channel is [PRESENCE]; other windows are returned unchanged.
 */
internal fun toLength(x: Tensor, window: Window): Tensor {
    val fits = x.dtype == DType.FLOAT32 && x.shape.size == 3 && x.shape[1] == window.channels.size && window.channels.last() == PRESENCE
    if (!fits || x.shape[2] >= window.length) return x
    val paddedWindows = Tensor.allocate(DType.FLOAT32, listOf(x.rows, x.shape[1], window.length))
    val (source, target, time) = Triple(x.floats(), paddedWindows.floats(), x.shape[2])
    for (row in 0 until x.rows * x.shape[1]) for (t in 0 until window.length) target.put(if (t < time) source.get() else 0f)
    return paddedWindows
}

/** Name of the last channel of windows that may be padded. */
internal const val PRESENCE = "present"
