package io.shoal.android

/** Limits of Android's versions on a long job; pure. [sdk] is `Build.VERSION.SDK_INT`. */
internal class ForegroundRules(private val sdk: Int) {
    /** True if a foreground service states its type: possible from API 29, required from 34. */
    val typed: Boolean get() = sdk >= 29

    /**
     * Return the time limit of a job (ms). In the background, WorkManager's jobs are stopped after
     * ten minutes. In the foreground, a service of the type dataSync has, from API 35 on, six hours
     * in 24, of which [usedMs] are used up; before, it has no limit. From API 36 on, a job beside a
     * foreground service counts against the app's quota of jobs, unless the phone is [charging].
     */
    fun limitMs(foreground: Boolean, wantedMs: Long, usedMs: Long, charging: Boolean = true): Long = when {
        !foreground || (sdk >= 36 && !charging) -> minOf(wantedMs, BACKGROUND_MS)
        sdk >= 35 -> minOf(wantedMs, DAILY_MS - usedMs).coerceAtLeast(0)
        else -> wantedMs
    }

    /**
     * Return true if it is worthwhile to ask for a foreground service: some time of the day's six
     * hours must be left.
     */
    fun worthAsking(usedMs: Long): Boolean = sdk < 35 || DAILY_MS - usedMs > BACKGROUND_MS

    companion object {
        /**
         * Ten minutes, less two: the next job continues where this one ends, and one that Android
         * stops may lose half a minute of work.
         */
        const val BACKGROUND_MS: Long = 8 * 60_000

        /**
         * Six hours, less a quarter of one: Android measures this time, and we only estimate it.
         */
        const val DAILY_MS: Long = 345 * 60_000
        const val DAY_MS: Long = 24 * 60 * 60_000
    }
}

/** Times at which jobs ran in the foreground, in the last 24 hours (ms of Unix time). */
internal class ForegroundTimes(private val spans: List<LongRange> = emptyList()) {
    /** Return the time in the foreground during the 24 hours before [nowMs]. */
    fun usedMs(nowMs: Long): Long = spans.sumOf { (minOf(it.last, nowMs) - maxOf(it.first, nowMs - ForegroundRules.DAY_MS)).coerceAtLeast(0) }

    /** Return these times and one more, without those older than a day. */
    fun plus(fromMs: Long, untilMs: Long): ForegroundTimes =
        ForegroundTimes(spans.filter { it.last > untilMs - ForegroundRules.DAY_MS } + listOf(fromMs..untilMs))

    override fun toString(): String = spans.joinToString(",") { "${it.first}-${it.last}" }

    companion object {
        private val SPAN = Regex("(\\d{1,18})-(\\d{1,18})")

        /** Parse the output of [toString]. Other text counts as no times. */
        fun parse(text: String): ForegroundTimes =
            ForegroundTimes(text.split(",").mapNotNull { SPAN.matchEntire(it)?.destructured?.let { (a, b) -> a.toLong()..b.toLong() } })
    }
}
