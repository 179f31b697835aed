package io.shoal.android

/** What Android's versions allow a long job; pure. [sdk] is `Build.VERSION.SDK_INT`. */
internal class ForegroundRules(private val sdk: Int) {
    /** Whether a foreground service must say its type: offered from API 29, demanded from 34. */
    val typed: Boolean get() = sdk >= 29

    /**
     * How long a job may run, in ms. In the background WorkManager's jobs are stopped after ten minutes. In the foreground a service of
     * the type dataSync has, from API 35 on, six hours in 24, of which [usedMs] are gone; below that it runs as long as it likes. From API
     * 36 on a job beside a foreground service counts against the app's quota of jobs, unless the phone is [charging].
     */
    fun limitMs(foreground: Boolean, wantedMs: Long, usedMs: Long, charging: Boolean = true): Long = when {
        !foreground || (sdk >= 36 && !charging) -> minOf(wantedMs, BACKGROUND_MS)
        sdk >= 35 -> minOf(wantedMs, DAILY_MS - usedMs).coerceAtLeast(0)
        else -> wantedMs
    }

    /** Whether asking for a foreground service makes sense: not with nearly nothing left of the day's six hours. */
    fun worthAsking(usedMs: Long): Boolean = sdk < 35 || DAILY_MS - usedMs > BACKGROUND_MS

    companion object {
        /** Ten minutes, less two: the next job goes on where this one ends, and one that Android stops may lose half a minute of work. */
        const val BACKGROUND_MS: Long = 8 * 60_000

        /** Six hours, less a quarter of one: Android counts, we estimate. */
        const val DAILY_MS: Long = 345 * 60_000
        const val DAY_MS: Long = 24 * 60 * 60_000
    }
}

/** The times, in ms of Unix time, at which jobs ran in the foreground, of the last 24 hours. */
internal class ForegroundTimes(private val spans: List<LongRange> = emptyList()) {
    /** How much of the 24 hours before [nowMs] was spent in the foreground. */
    fun usedMs(nowMs: Long): Long = spans.sumOf { (minOf(it.last, nowMs) - maxOf(it.first, nowMs - ForegroundRules.DAY_MS)).coerceAtLeast(0) }

    /** These times and one more; what is older than a day is forgotten. */
    fun plus(fromMs: Long, untilMs: Long): ForegroundTimes =
        ForegroundTimes(spans.filter { it.last > untilMs - ForegroundRules.DAY_MS } + listOf(fromMs..untilMs))

    override fun toString(): String = spans.joinToString(",") { "${it.first}-${it.last}" }

    companion object {
        private val SPAN = Regex("(\\d{1,18})-(\\d{1,18})")

        /** Reads what [toString] wrote; what is not such a text counts as nothing. */
        fun parse(text: String): ForegroundTimes =
            ForegroundTimes(text.split(",").mapNotNull { SPAN.matchEntire(it)?.destructured?.let { (a, b) -> a.toLong()..b.toLong() } })
    }
}
