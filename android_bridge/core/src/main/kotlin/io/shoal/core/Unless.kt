package io.shoal.core

import java.util.concurrent.ExecutionException
import java.util.concurrent.FutureTask
import java.util.concurrent.TimeUnit
import java.util.concurrent.TimeoutException
import kotlin.concurrent.thread

private const val ASK_MS = 50L

/**
 * Run [body] on a thread of its own and return its result, or return null as soon as [giveUp]
 * returns true. Looking up a host and a TLS handshake cannot be interrupted, and a client that is
 * asked to stop must not wait for them. A result that comes later is passed to [abandoned].
 *
 * @throws Throwable an error of [body]
 */
@InternalShoalApi
public fun <T : Any> unless(giveUp: () -> Boolean, abandoned: (T) -> Unit = {}, body: () -> T): T? {
    val task = FutureTask(body)
    thread(isDaemon = true, name = "shoal-waits") { task.run() }
    while (true) {
        try {
            return task.get(ASK_MS, TimeUnit.MILLISECONDS)
        } catch (_: TimeoutException) {
            if (!giveUp()) continue
            thread(isDaemon = true, name = "shoal-abandoned") {
                try {
                    abandoned(task.get())
                } catch (_: ExecutionException) {
                    // there is no result to abandon
                }
            }
            return null
        } catch (error: ExecutionException) {
            throw error.cause ?: error
        }
    }
}
