package io.shoal.core

import org.junit.jupiter.api.Assumptions.assumeTrue
import java.io.File
import java.security.KeyPair
import java.security.KeyPairGenerator
import java.security.Signature
import java.security.spec.ECGenParameterSpec

/** Folder of the repository. */
val repository: File = File(System.getProperty("shoal.root"))

/**
 * Return a file that the Python side wrote for this run (`tests/android/kotlin_vectors.py`), or
 * skip the test if it describes a service, and none runs.
 */
fun fromPython(name: String): File {
    val folder = System.getProperty("shoal.tests").orEmpty()
    check(folder.isNotEmpty()) { "the Python side wrote no vectors: run ./build test" }
    return File(folder, name).also { assumeTrue(it.exists(), "$it needs a service: pytest tests/android/test_core.py would run this") }
}

/** Device's key in memory. */
internal class MemoryKey(private val pair: KeyPair = newPair()) : EnrolmentKey {
    override val publicKey: ByteArray get() = pair.public.encoded

    override fun sign(bytes: ByteArray): ByteArray = Signature.getInstance("SHA256withECDSA").run {
        initSign(pair.private)
        update(bytes)
        sign()
    }
}

/** Return a new P-256 key pair. */
internal fun newPair(): KeyPair = KeyPairGenerator.getInstance("EC").apply { initialize(ECGenParameterSpec("secp256r1")) }.generateKeyPair()
