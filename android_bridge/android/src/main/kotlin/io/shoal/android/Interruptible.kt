package io.shoal.android

import io.shoal.core.GraphLoader
import io.shoal.core.Graphs
import io.shoal.core.Tensors
import io.shoal.core.wire.Bundle
import java.util.concurrent.CancellationException

/**
 * Graphs that run no more once the job is [stopped]: Android then kills the process within seconds. The plan stays, and the next job carries
 * it out.
 *
 * @throws CancellationException from `run`, when stopped
 */
internal class Interruptible(private val loader: GraphLoader, private val stopped: () -> Boolean) : GraphLoader {
    override val runtime: String get() = loader.runtime

    override fun load(bundle: Bundle): Graphs {
        val graphs = loader.load(bundle)
        return object : Graphs by graphs {
            override fun run(graph: String, inputs: Tensors): Tensors {
                if (stopped()) throw CancellationException("the job was stopped")
                return graphs.run(graph, inputs)
            }
        }
    }
}
