package io.shoal.android

/**
 * Whether the phone is too warm to train; pure. From API 29 on Android says how far it has to slow down ([status], `PowerManager`), on
 * every version the battery how warm it is.
 */
internal class Heat(
    private val sdk: Int,
    private val status: () -> Int,
    private val batteryC: () -> Double?,
    private val nowMs: () -> Long,
) {
    private var askedMs = Long.MIN_VALUE
    private var ends = false

    /** No job begins now. */
    fun holdsOff(): Boolean = isAbove(MODERATE, WARM_C)

    /** A job is to end now: the next goes on where it was. Asked as often as one likes: it looks once a second. */
    fun ends(): Boolean {
        val now = nowMs()
        if (askedMs == Long.MIN_VALUE || now - askedMs >= EVERY_MS) {
            askedMs = now
            ends = isAbove(SEVERE, HOT_C)
        }
        return ends
    }

    private fun isAbove(level: Int, celsius: Double): Boolean = (sdk >= 29 && status() >= level) || (batteryC() ?: 0.0) >= celsius

    private companion object {
        /** `PowerManager.THERMAL_STATUS_MODERATE` and `THERMAL_STATUS_SEVERE`. */
        const val MODERATE = 2
        const val SEVERE = 3
        const val WARM_C = 42.0
        const val HOT_C = 45.0
        const val EVERY_MS = 1_000L
    }
}
