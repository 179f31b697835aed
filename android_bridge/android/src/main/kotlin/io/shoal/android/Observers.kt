package io.shoal.android

import io.shoal.core.Log
import java.util.concurrent.CopyOnWriteArrayList
import java.util.concurrent.Executor
import java.util.concurrent.RejectedExecutionException

/**
 * Observers of values. An observer whose executor accepts no more tasks is removed. What one throws
 * is logged: the thread that tells of a value may be that of a job.
 */
internal class Observers<T>(private val log: Log = LogcatLog) {
    private class Observer<T>(val listener: Any, val executor: Executor, val tell: (T) -> Unit)

    private val all = CopyOnWriteArrayList<Observer<T>>()

    /**
     * Call [listener] by [tell], on [executor], with [now], if it is not null, and with each value
     * that follows.
     */
    fun add(listener: Any, executor: Executor, now: T?, tell: (T) -> Unit) {
        val observer = Observer(listener, executor, tell)
        all += observer
        if (now != null) pass(observer, now)
    }

    fun remove(listener: Any) {
        all.removeIf { it.listener === listener }
    }

    fun tell(value: T): Unit = all.forEach { pass(it, value) }

    /** Call this listener alone. */
    fun tell(value: T, listener: Any): Unit = all.filter { it.listener === listener }.forEach { pass(it, value) }

    private fun pass(observer: Observer<T>, value: T) {
        try {
            observer.executor.execute { log.failures(observer.listener) { observer.tell(value) } }
        } catch (_: RejectedExecutionException) { // the executor was shut down
            all -= observer
        }
    }
}

/** Call an app's [listener] by [tell], and log an exception of it. */
internal fun Log.failures(listener: Any, tell: () -> Unit) {
    try {
        tell()
    } catch (error: Exception) { // of the app's code
        write(Log.Level.ERROR, "listener ${listener.javaClass.name} failed: $error")
    }
}
