package io.shoal.core

import io.shoal.core.wire.Bundle
import java.util.concurrent.ExecutionException
import java.util.concurrent.Executors
import java.util.concurrent.Future
import kotlin.concurrent.thread

/**
 * One thread that owns graphs which must not be used by two: they are loaded, run and let go on it alone, whoever calls. What trains has one
 * and what answers another, so that an answer waits for no batch of a training.
 */
@InternalShoalApi
public class OwnerThread(name: String) {
    private val tasks = Executors.newSingleThreadExecutor { task -> thread(start = false, isDaemon = true, name = name) { task.run() } }

    /** A loader whose graphs are used on this thread alone, over [loader]. */
    public fun owned(loader: GraphLoader): GraphLoader = object : GraphLoader {
        override val runtime: String get() = loader.runtime

        override fun load(bundle: Bundle): Graphs {
            val graphs = call { loader.load(bundle) }
            return object : Graphs {
                override val maxBatch: Int? get() = graphs.maxBatch

                override fun run(graph: String, inputs: Tensors): Tensors = call { graphs.run(graph, inputs) }

                override fun close() = call { graphs.close() }
            }
        }
    }

    /** Runs [body] on the thread; what it throws is thrown here. An interruption of the caller is remembered, not obeyed. */
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
