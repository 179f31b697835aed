package io.shoal.host

import io.shoal.core.Executor
import io.shoal.core.Windows
import io.shoal.core.wire.Bundle
import io.shoal.core.wire.Plan
import io.shoal.core.wire.decodeAny
import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.encodeTensors
import io.shoal.executorch.ExecutorchLoader
import java.io.File

/**
 * Carry out plans: `plans BUNDLE FOLDER`. Each folder in FOLDER has `plan.json`,
 * `model.safetensors`, and `windows.safetensors` with `train_x train_y test_x test_y unlabelled_x`.
 * It gets `update.safetensors`, the tensors of the update, `kept.safetensors`, those that the
 * device stores, and `answers.safetensors` with the `probabilities` of its test windows afterwards.
 */
public fun main(arguments: Array<String>) {
    val (bundleFile, folder) = arguments
    val bundle = Bundle.unpack(File(bundleFile).readBytes())
    ExecutorchLoader(File("$bundleFile.programs")).load(bundle).use { graphs ->
        for (case in File(folder).listFiles()!!.sorted()) {
            fun tensors(name: String) = decodeTensors(File(case, "$name.safetensors").readBytes()).tensors
            val windows = tensors("windows")
            val (trainX, trainY, testX, testY, unlabelledX) = listOf("train_x", "train_y", "test_x", "test_y", "unlabelled_x").map(windows::getValue)
            val plan = decodeAny(File(case, "plan.json").readBytes()) as Plan
            val executor = Executor(bundle, graphs, Windows(trainX, trainY, testX, testY, unlabelledX))
            val result = executor.execute(plan, tensors("model"), emptyMap(), { throw IllegalStateException("no plan here names the blob $it") })
            val answers = mapOf("probabilities" to executor.predict(tensors("model"), result.private, testX))
            for ((name, tensors) in mapOf("update" to result.tensors, "kept" to result.private, "answers" to answers)) {
                File(case, "$name.safetensors").writeBytes(encodeTensors(tensors))
            }
        }
    }
}
