package io.shoal.core.wire

import io.shoal.core.BundleException
import io.shoal.core.repository
import java.io.File
import java.security.GeneralSecurityException
import java.security.KeyFactory
import java.security.Signature
import java.security.spec.X509EncodedKeySpec
import kotlin.test.assertEquals
import kotlin.test.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.TestFactory

/** Signatures of `wire/vectors/signatures.json`, which Python accepts and refuses too. */
class SignaturesTest {
    @TestFactory
    fun `Ed25519`() = verdicts("ed25519") { key, signature, message ->
        try {
            PublicKey.of(key).verify(signature, message)
        } catch (_: BundleException) {
            false
        }
    }

    /** The certificates of an enrolment are verified by the platform. */
    @TestFactory
    fun `ECDSA over P-256`() = verdicts("ecdsa-p256") { key, signature, message ->
        Signature.getInstance("SHA256withECDSA").run {
            initVerify(KeyFactory.getInstance("EC").generatePublic(X509EncodedKeySpec(key)))
            update(message)
            try {
                verify(signature)
            } catch (_: GeneralSecurityException) {
                false
            }
        }
    }

    private fun verdicts(kind: String, verify: (ByteArray, ByteArray, ByteArray) -> Boolean): List<DynamicTest> {
        val file = Fields(parseJson(File(repository, "wire/vectors/signatures.json").readBytes()), "signatures.json")
        val cases = file.list(kind) { it, path -> Fields(it, path) }
        assertTrue(cases.count { it.bool("valid") } >= 2 && cases.size >= 20)
        return cases.map { case ->
            DynamicTest.dynamicTest(case.string("name")) {
                val valid = verify(case.bytes("key"), case.bytes("signature"), case.bytes("message"))
                assertEquals(case.bool("valid"), valid)
            }
        }
    }

    private fun Fields.bytes(name: String) = string(name).chunked(2).map { it.toInt(16).toByte() }.toByteArray()
}
