package io.shoal.android

import java.io.IOException
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

/**
 * Return the result of [act] on this executor: false if its files cannot be written. Nobody may wait
 * for it on the main thread.
 */
internal fun Executor.outcome(act: () -> Boolean): CompletableFuture<Boolean> {
    val outcome = CompletableFuture<Boolean>()
    execute {
        val result = try {
            act()
        } catch (_: IOException) {
            false
        } catch (error: Throwable) {
            outcome.completeExceptionally(error)
            throw error
        }
        outcome.complete(result)
    }
    return outcome
}
