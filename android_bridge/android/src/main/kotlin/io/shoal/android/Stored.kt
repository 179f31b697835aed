package io.shoal.android

import java.util.concurrent.CompletableFuture
import java.util.concurrent.Executor

/**
 * Value that [reader] reads from disk once. A thread that needs it earlier waits; one that sets it
 * does not.
 */
internal class Stored<T>(reader: Executor, read: () -> T) {
    private val future: CompletableFuture<T> = CompletableFuture.supplyAsync({ read() }, reader)

    var value: T
        get() = future.join()
        set(value) = synchronized(future) { future.obtrudeValue(value) }

    /** Set another value in place of [expected], and not of a later one. */
    fun change(expected: T, value: T): Unit = synchronized(future) { if (future.join() === expected) future.obtrudeValue(value) }
}
