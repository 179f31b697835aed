package io.shoal.core

import io.shoal.core.wire.Bundle
import io.shoal.core.wire.Plan
import io.shoal.core.wire.PublicKey
import io.shoal.core.wire.Train
import io.shoal.core.wire.Verb
import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.digest
import java.io.File

/** The fake bundle, windows and blobs that the Python side wrote. */
object Fixture {
    val folder: File get() = fromPython("executor")
    val payload: ByteArray by lazy { File(folder, "bundle.zip").readBytes() }
    val key: PublicKey by lazy { PublicKey.parse(File(folder, "trust.pem").readText()) }
    val otherKey: PublicKey by lazy { PublicKey.parse(File(folder, "other.pem").readText()) }
    val bundle: Bundle by lazy { Bundle.unpack(payload, key) }
    val windows: Windows by lazy { windowsIn(File(folder, "windows.safetensors")) }

    /** The first plan's model. */
    val model: ByteArray by lazy { blob(io.shoal.core.wire.decode<Plan>(File(folder, "cases/01/plan.json").readBytes()).model) }

    fun blob(name: String): ByteArray = File(folder, "blobs/$name").readBytes()

    fun windowsIn(file: File): Windows {
        val tensors = decodeTensors(file.readBytes()).tensors
        val (trainX, trainY, testX, testY) = listOf("train_x", "train_y", "test_x", "test_y").map(tensors::getValue)
        return Windows(trainX, trainY, testX, testY)
    }

    fun plan(round: Long = 1, run: String = "run", verbs: List<Verb> = listOf(Train(8)), deadlineAtS: Double = 1e9): Plan =
        Plan(run, round, "phone", digest(payload), digest(model), verbs, 7, deadlineAtS)
}
