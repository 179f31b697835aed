package io.shoal.core

import io.shoal.core.wire.Bundle
import java.util.concurrent.ExecutionException
import java.util.concurrent.Executors
import java.util.concurrent.Future
import kotlin.concurrent.thread

/**
 * Thread that owns graphs, which must not be used by two threads: they are loaded, run and released
 * on it alone, whoever calls. Training has one such thread and predictions another, so that a
 * prediction does not wait for a batch of a training. The thread calls [begin] first.
 */
@InternalShoalApi
public class OwnerThread(name: String, begin: () -> Unit = {}) {
    private val tasks = Executors.newSingleThreadExecutor { task ->
        thread(start = false, isDaemon = true, name = name) {
            begin()
            task.run()
        }
    }

    /** Return a loader that makes [loader]'s graphs and uses them on this thread alone. */
    public fun owned(loader: GraphLoader): GraphLoader = object : GraphLoader {
        override val runtime: String get() = loader.runtime

        override fun require() = call { loader.require() }

        override fun load(bundle: Bundle): Graphs {
            val graphs = call { loader.load(bundle) }
            return object : Graphs {
                override val maxBatch: Int? get() = graphs.maxBatch

                override fun run(graph: String, inputs: Tensors): Tensors = call { graphs.run(graph, inputs) }

                override fun close() = call { graphs.close() }
            }
        }
    }

    /**
     * Run [body] on the thread, and throw its errors here. An interruption of the caller is
     * remembered, not obeyed.
     */
    private fun <T> call(body: () -> T): T {
        val result: Future<T> = tasks.submit(body)
        var interrupted = false
        try {
            while (true) {
                try {
                    return result.get()
                } catch (_: InterruptedException) {
                    interrupted = true
                } catch (error: ExecutionException) {
                    throw error.cause ?: error
                }
            }
        } finally {
            if (interrupted) Thread.currentThread().interrupt()
        }
    }
}
