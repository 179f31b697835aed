package io.shoal.host

import io.shoal.core.Tensor
import io.shoal.core.wire.Bundle
import io.shoal.core.wire.Names
import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.encodeTensors
import io.shoal.executorch.ExecutorchLoader
import java.io.File

/**
 * Run a step graph several times, each time from the results of the step before, as training does:
 * `steps BUNDLE GRAPH VERSION INPUTS OUTPUTS`. VERSION is the runtime's. INPUTS is a tensor file
 * with `start/ROLE/NAME`, `hyper/NAME` and, for each step I from 0 on, `in/I/batch/NAME`. OUTPUTS
 * gets the last `next/ROLE/NAME` and each step's `I/metric/NAME`.
 */
public fun main(arguments: Array<String>) {
    val (bundleFile, graph, version, inputsFile, outputsFile) = arguments
    val bundle = Bundle.unpack(File(bundleFile).readBytes())
    val inputs = decodeTensors(File(inputsFile).readBytes()).tensors
    val tensors = HashMap(bundle.initial + inputs.filterKeys { Names.roleOf(it) == Names.HYPER })
    tensors += Names.part(inputs, "start")
    val batches = inputs.keys.filter { it.startsWith("in/") }.groupBy { it.split("/")[1].toInt() }
    val results = HashMap<String, Tensor>()
    ExecutorchLoader(File("$outputsFile.programs"), version = version).load(bundle).use { graphs ->
        for (step in batches.keys.sorted()) {
            val batch = batches.getValue(step).associate { it.removePrefix("in/$step/") to inputs.getValue(it) }
            val outputs = graphs.run(graph, tensors + batch)
            for ((name, tensor) in outputs) {
                if (Names.roleOf(name) == Names.NEXT) tensors[Names.nameOf(name)] = tensor
                results[if (Names.roleOf(name) == Names.METRIC) "$step/$name" else name] = tensor
            }
        }
    }
    File(outputsFile).writeBytes(encodeTensors(results))
}
