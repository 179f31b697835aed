package io.shoal.executorch

import io.shoal.core.BundleException
import io.shoal.core.Graphs
import io.shoal.core.Tensors
import io.shoal.core.wire.Bundle
import org.pytorch.executorch.Module
import java.io.File
import java.io.FileOutputStream
import java.io.IOException

/**
 * Graphs of one verified bundle. A program is written into [folder] and loaded by the runtime when
 * it is first run.
 */
internal class ExecutorchGraphs(private val bundle: Bundle, private val folder: File) : Graphs {
    private val programs = HashMap<String, LoadedProgram>()

    override val maxBatch: Int = bundle.manifest.graphs.keys.minOf { chosen(it).first.maxBatch }

    init {
        folder.mkdirs()
        val leftover = System.currentTimeMillis() - LEFTOVER_MS // files of a process that was killed while loading
        folder.listFiles { file -> file.name.endsWith(SUFFIX) && file.lastModified() < leftover }.orEmpty().forEach { it.delete() }
    }

    override fun run(graph: String, inputs: Tensors): Tensors = programs.getOrPut(graph) { load(graph) }.run(inputs)

    override fun close() {
        programs.values.forEach { it.close() }
        programs.clear()
    }

    private fun chosen(graph: String) = bundle.program(graph, ExecutorchLoader.XNNPACK, ExecutorchLoader.PORTABLE)

    /**
     * Load a program. Its file is deleted as soon as the runtime has opened it: then nothing is
     * left behind, and nobody can change a program in use.
     */
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
            throw BundleException("$what: its program cannot be written into $folder: ${error.message}")
        } catch (error: RuntimeException) { // ExecutorchRuntimeException, and errors of older versions
            throw BundleException("$what: ExecuTorch cannot load its program: ${error.message}")
        }
        return LoadedProgram(what, bundle.graph(graph), module)
    }

    private companion object {
        const val SUFFIX = ".pte"

        /**
         * Number of threads that leaves the runtime's pool as it is. The whole process has one
         * pool. Loading a module with a number of threads, or with 0 for an automatic number, makes
         * another pool, even while a graph runs in the old one. A negative number does not.
         */
        const val THREADS_AS_THEY_ARE = -1
        const val LEFTOVER_MS = 60_000L
    }
}
