package io.shoal.core

/**
 * Bytes sent and received in the last 24 hours, by the hour. They are kept over restarts. The
 * device's own clock counts the hours.
 */
internal class Traffic(private val storage: Storage, private val clock: Clock) {
    private val hours = HashMap(storage.traffic())
    private var unsaved = 0L

    /** Count bytes that were sent or received. */
    fun add(bytes: Int) {
        hours[hour()] = (hours[hour()] ?: 0) + bytes
        unsaved += bytes
        if (unsaved >= SAVED_EVERY) save()
    }

    /**
     * Return the bytes of the last 24 hours. Hours in the future, by a clock that was set back,
     * count too.
     */
    fun lastDay(): Long = hours.entries.sumOf { (hour, bytes) -> if (hour >= hour() - DAY_HOURS) bytes else 0 }

    /**
     * Return the reason why [more] bytes break the rule `max_bytes_a_day`, or null if they do not.
     * [most] is the limit, null for none.
     */
    fun exceeds(most: Long?, more: Int = 0): String? {
        val bytes = lastDay() + more
        return if (most == null || bytes <= most) null else "max_bytes_a_day: $bytes in 24 hours, $most are permitted"
    }

    /** Store the counts, without those older than a day. */
    fun save() {
        if (unsaved == 0L) return
        hours.keys.removeAll { it < hour() - DAY_HOURS }
        storage.saveTraffic(hours)
        unsaved = 0
    }

    private fun hour() = (clock.nowSeconds() / 3600).toLong()

    private companion object {
        const val DAY_HOURS = 24L
        const val SAVED_EVERY = 256L * 1024
    }
}
