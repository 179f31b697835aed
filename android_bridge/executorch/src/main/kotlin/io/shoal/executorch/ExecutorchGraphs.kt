package io.shoal.executorch

import io.shoal.core.BundleException
import io.shoal.core.Graphs
import io.shoal.core.Tensors
import io.shoal.core.wire.Bundle
import java.io.File
import java.io.FileOutputStream
import java.io.IOException
import org.pytorch.executorch.Module

/** The graphs of one verified bundle. A program goes through [folder] into the runtime when it is first run. */
internal class ExecutorchGraphs(private val bundle: Bundle, private val folder: File) : Graphs {
    private val programs = HashMap<String, LoadedProgram>()

    override val maxBatch: Int = bundle.manifest.graphs.keys.minOf { chosen(it).first.maxBatch }

    init {
        folder.mkdirs()
        val leftover = System.currentTimeMillis() - LEFTOVER_MS // of a process that was killed while it loaded one
        folder.listFiles { file -> file.name.endsWith(SUFFIX) && file.lastModified() < leftover }.orEmpty().forEach { it.delete() }
    }

    override fun run(graph: String, inputs: Tensors): Tensors = programs.getOrPut(graph) { load(graph) }.run(inputs)

    override fun close() {
        programs.values.forEach { it.close() }
        programs.clear()
    }

    private fun chosen(graph: String) = bundle.program(graph, ExecutorchLoader.XNNPACK, ExecutorchLoader.PORTABLE)

    /** The file goes once the runtime has it open: a bundle in use leaves nothing behind, and nobody can change a program under it. */
    private fun load(graph: String): LoadedProgram {
        val (_, bytes) = chosen(graph)
        val what = "bundle ${bundle.manifest.name}: graph '$graph'"
        val module = try {
            val file = File.createTempFile("program", SUFFIX, folder)
            try {
                FileOutputStream(file).use { it.write(bytes) }
                Module.load(file.path, Module.LOAD_MODE_FILE, THREADS_AS_THEY_ARE).also { it.loadMethod("forward") }
            } finally {
                file.delete()
            }
        } catch (error: IOException) {
            throw BundleException("$what cannot be written into $folder: ${error.message}")
        } catch (error: RuntimeException) { // ExecutorchRuntimeException, and what older versions throw
            throw BundleException("$what: ExecuTorch does not load it: ${error.message}")
        }
        return LoadedProgram(what, bundle.graph(graph), module)
    }

    private companion object {
        const val SUFFIX = ".pte"

        /**
         * The runtime has one pool of threads for the whole process, and makes another one with each module that is loaded with a number of
         * threads, or with 0 for a number of its own, also while a graph runs in it. Less than 0 leaves it alone.
         */
        const val THREADS_AS_THEY_ARE = -1
        const val LEFTOVER_MS = 60_000L
    }
}
