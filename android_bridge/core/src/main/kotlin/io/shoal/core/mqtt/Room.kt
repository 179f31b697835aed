package io.shoal.core.mqtt

import java.util.concurrent.TimeUnit
import java.util.concurrent.locks.ReentrantLock
import kotlin.concurrent.withLock

/** Limit of the bytes that were read and not yet handled: at most [most], or one payload alone. */
internal class Room(private val most: Int) {
    private val lock = ReentrantLock()
    private val freed = lock.newCondition()
    private var reserved = 0L

    /** Reserve so many bytes. Wait until there is room for them, while [needed] returns true. */
    fun take(bytes: Int, needed: () -> Boolean): Unit = lock.withLock {
        while (reserved > 0 && reserved + bytes > most && needed()) freed.await(POLL_MS, TimeUnit.MILLISECONDS)
        reserved += bytes
    }

    /** Free so many bytes that are about to be handled. */
    fun give(bytes: Int): Unit = lock.withLock {
        reserved -= bytes
        freed.signalAll()
    }

    private companion object {
        const val POLL_MS = 200L
    }
}
