package io.shoal.core.mqtt

import java.util.concurrent.TimeUnit
import java.util.concurrent.locks.ReentrantLock
import kotlin.concurrent.withLock

/** Bounds the bytes that were read and not yet handled: at most [most], or one payload alone. */
internal class Room(private val most: Int) {
    private val lock = ReentrantLock()
    private val given = lock.newCondition()
    private var taken = 0L

    /** Waits until there is room for so many bytes, while [needed]. */
    fun take(bytes: Int, needed: () -> Boolean): Unit = lock.withLock {
        while (taken > 0 && taken + bytes > most && needed()) given.await(POLL_MS, TimeUnit.MILLISECONDS)
        taken += bytes
    }

    /** So many bytes are about to be handled. */
    fun give(bytes: Int): Unit = lock.withLock {
        taken -= bytes
        given.signalAll()
    }

    private companion object {
        const val POLL_MS = 200L
    }
}
