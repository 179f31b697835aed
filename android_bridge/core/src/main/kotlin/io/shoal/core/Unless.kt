package io.shoal.core

import java.util.concurrent.ExecutionException
import java.util.concurrent.FutureTask
import java.util.concurrent.TimeUnit
import java.util.concurrent.TimeoutException
import kotlin.concurrent.thread

private const val ASK_MS = 50L

/**
 * What [body] comes to, on a thread of its own, or null as soon as [giveUp] says so: looking up a host or a TLS handshake cannot be
 * interrupted, and whoever is told to end must not wait for it. What [body] comes to after that is given to [abandoned].
 *
 * @throws Throwable what [body] throws
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
                    // it came to nothing
                }
            }
            return null
        } catch (error: ExecutionException) {
            throw error.cause ?: error
        }
    }
}
