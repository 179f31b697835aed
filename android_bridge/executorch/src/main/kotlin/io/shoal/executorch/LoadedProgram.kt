package io.shoal.executorch

import io.shoal.core.BundleException
import io.shoal.core.DType
import io.shoal.core.Tensor
import io.shoal.core.Tensors
import io.shoal.core.wire.Graph
import org.pytorch.executorch.DType as NativeDType
import org.pytorch.executorch.EValue
import org.pytorch.executorch.Module
import org.pytorch.executorch.Tensor as NativeTensor
import java.io.Closeable
import java.nio.ByteBuffer
import java.nio.ByteOrder

/**
 * Program in the runtime. Inputs are copied into direct buffers of native byte order, which stay,
 * one for each shape of an input: the runtime reads them in place. Outputs lie in memory that the
 * next call overwrites, so they are copied at once.
 *
 * @param what beginning of the error's text: the graph and its bundle
 */
internal class LoadedProgram(private val what: String, private val graph: Graph, private val module: Module) : Closeable {
    private val slots = graph.inputs.map { HashMap<List<Int>, Slot>() }

    fun run(inputs: Tensors): Tensors {
        val values = Array(graph.inputs.size) { at ->
            val name = graph.inputs[at]
            val tensor = inputs[name] ?: throw BundleException("$what: input $name is missing")
            slots[at].getOrPut(tensor.shape) { Slot(name, tensor) }.fill(tensor)
        }
        val outputs = try {
            module.execute("forward", *values)
        } catch (error: RuntimeException) {
            throw BundleException("$what: ExecuTorch failed on inputs ${inputs.filterKeys { it in graph.inputs }}: ${error.message}")
        }
        if (outputs.size != graph.outputs.size) {
            throw BundleException("$what: expected ${graph.outputs.size} outputs, as in the manifest, got ${outputs.size}")
        }
        return graph.outputs.indices.associate { graph.outputs[it] to copied(graph.outputs[it], outputs[it].toTensor()) }
    }

    override fun close() = module.destroy()

    private fun copied(name: String, from: NativeTensor): Tensor {
        val shape = from.shape().map { it.toInt() }
        return when (from.dtype()) {
            NativeDType.FLOAT -> Tensor.of(from.dataAsFloatArray, shape)
            NativeDType.INT64 -> Tensor.of(from.dataAsLongArray, shape)
            else -> throw BundleException("$what: output $name must be float32 or int64, got ${from.dtype()}")
        }
    }

    /** Buffer for one input of one shape, and its value for the runtime. */
    private inner class Slot(name: String, like: Tensor) {
        private val dtype = like.dtype
        private val buffer: ByteBuffer = ByteBuffer.allocateDirect(like.size * dtype.size).order(ByteOrder.nativeOrder())
        private val value: EValue

        init {
            val shape = LongArray(like.shape.size) { like.shape[it].toLong() }
            val tensor = when (dtype) {
                DType.FLOAT32 -> NativeTensor.fromBlob(buffer.asFloatBuffer(), shape)
                DType.INT64 -> NativeTensor.fromBlob(buffer.asLongBuffer(), shape)
                DType.INT32 -> NativeTensor.fromBlob(buffer.asIntBuffer(), shape)
                DType.UINT8 -> NativeTensor.fromBlobUnsigned(buffer, shape)
                DType.INT8, DType.BOOL ->
                    throw BundleException("$what: input $name is $dtype, which ExecuTorch's Java interface does not support")
            }
            value = EValue.from(tensor)
        }

        fun fill(from: Tensor): EValue {
            if (from.dtype != dtype) throw BundleException("$what: an input must be $dtype, got $from")
            buffer.duplicate().put(from.data.duplicate()) // both little-endian, as every device that ExecuTorch runs on is
            return value
        }
    }
}
