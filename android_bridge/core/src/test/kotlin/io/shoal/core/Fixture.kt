package io.shoal.core

import io.shoal.core.wire.Bundle
import io.shoal.core.wire.Finish
import io.shoal.core.wire.Message
import io.shoal.core.wire.Plan
import io.shoal.core.wire.PublicKey
import io.shoal.core.wire.Release
import io.shoal.core.wire.Train
import io.shoal.core.wire.Verb
import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.digest
import io.shoal.core.wire.encode
import java.io.File
import java.security.KeyFactory
import java.security.Signature
import java.security.spec.EdECPrivateKeySpec
import java.security.spec.NamedParameterSpec
import java.util.Base64

/** Fake bundle, windows and blobs that the Python side wrote. */
object Fixture {
    val folder: File get() = fromPython("executor")
    val payload: ByteArray by lazy { File(folder, "bundle.zip").readBytes() }

    /** Two root keys. The second signed the bundle, and vouches for the service. */
    val keys: List<PublicKey> by lazy { PublicKey.parse(File(folder, "trust.pem").readText()) }
    val otherKeys: List<PublicKey> by lazy { PublicKey.parse(File(folder, "other.pem").readText()) }
    val bundle: Bundle by lazy { Bundle.unpack(payload, keys) }
    val windows: Windows by lazy { windowsIn(File(folder, "windows.safetensors")) }

    /** Model of the first plan. */
    val model: ByteArray by lazy { blob(io.shoal.core.wire.decode<Plan>(File(folder, "cases/01/plan.json").readBytes()).model) }

    fun blob(name: String): ByteArray = File(folder, "blobs/$name").readBytes()

    fun windowsIn(file: File): Windows {
        val tensors = decodeTensors(file.readBytes()).tensors
        val (trainX, trainY, testX, testY) = listOf("train_x", "train_y", "test_x", "test_y").map(tensors::getValue)
        return Windows(trainX, trainY, testX, testY, tensors.getValue("unlabelled_x"))
    }

    fun plan(
        round: Long = 1,
        run: String = "run",
        verbs: List<Verb> = listOf(Train(8)),
        deadlineAtS: Double = 1e9,
        epoch: Long = 5,
        attempt: Long = 0,
    ): Plan = Plan(run, epoch, round, attempt, "phone", digest(payload), digest(model), verbs, 7, deadlineAtS)

    internal fun finish(
        run: String = "run",
        epoch: Long = 5,
        bundle: ByteArray = payload,
        model: ByteArray = this.model,
        number: Long = epoch,
    ): Finish = Finish("phone", run, epoch, digest(bundle), digest(model), number = number)

    internal fun release(number: Long, model: ByteArray = this.model, bundle: ByteArray = payload, run: String = "run", epoch: Long = 5): Release =
        Release("phone", epoch, number, "left", run, digest(bundle), digest(model))

    /**
     * Return a message that the aggregator of the fleet `f` signed, with the service key of the
     * Python side's voucher.
     */
    fun signed(message: Message): ByteArray {
        val text = encode(message)
        val signature = Signature.getInstance("Ed25519").run {
            initSign(service)
            update("shoal/1 message\n".toByteArray() + text)
            Base64.getEncoder().encode(sign())
        }
        val end = byteArrayOf('\n'.code.toByte())
        return text + end + signature + end + File(folder, "voucher").readBytes()
    }

    private val service by lazy {
        val seed = File(folder, "service.key").readText().chunked(2).map { it.toInt(16).toByte() }.toByteArray()
        KeyFactory.getInstance("Ed25519").generatePrivate(EdECPrivateKeySpec(NamedParameterSpec.ED25519, seed))
    }
}

/** Clocks of a device: [nowS] may be set, [steadyS] only grows. */
class TestClock(var nowS: Double = 100.0, var steadyS: Double = 50.0) : Clock {
    override fun nowSeconds(): Double = nowS

    override fun steadySeconds(): Double = steadyS
}
