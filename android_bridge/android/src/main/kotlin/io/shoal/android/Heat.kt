package io.shoal.android

/**
 * Temperature of the phone, which may be too high to train; pure. From API 29 on Android reports
 * how far the phone has to slow down ([status], `PowerManager`), in every version the temperature
 * of the battery.
 */
internal class Heat(
    private val sdk: Int,
    private val status: () -> Int,
    private val batteryC: () -> Double?,
    private val nowMs: () -> Long,
) {
    private var askedMs = Long.MIN_VALUE
    private var ends = false

    /** Return true if no job may begin now. */
    fun forbidsStart(): Boolean = isAbove(MODERATE, WARM_C)

    /**
     * Return true if a job must end now; the next one continues where it was. The sensors are read
     * once a second at most.
     */
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
