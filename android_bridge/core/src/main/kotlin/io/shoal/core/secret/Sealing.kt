package io.shoal.core.secret

import io.shoal.core.ConfigException
import io.shoal.core.wire.digest
import java.security.GeneralSecurityException
import java.security.InvalidKeyException
import java.security.KeyFactory
import java.security.KeyPair
import java.security.KeyPairGenerator
import java.security.PrivateKey
import java.security.PublicKey
import java.security.spec.ECGenParameterSpec
import java.security.spec.X509EncodedKeySpec
import javax.crypto.Cipher
import javax.crypto.KeyAgreement
import javax.crypto.Mac
import javax.crypto.spec.GCMParameterSpec
import javax.crypto.spec.SecretKeySpec

/**
 * Public key of a helper, to which a device seals: HPKE (RFC 9180) in base mode with P-256,
 * HKDF-SHA256 and AES-128-GCM, all of the platform. [der] is its SubjectPublicKeyInfo.
 *
 * @throws ConfigException it is no P-256 key
 */
internal class HelperKey(val der: ByteArray) {
    /** SHA-256 of the key, by which a question names it. */
    val digest: String = digest(der)
    private val key: PublicKey = try {
        if (der.size != PREFIX.size + POINT_BYTES || !der.copyOf(PREFIX.size).contentEquals(PREFIX)) throw InvalidKeyException("not P-256, as DER")
        KeyFactory.getInstance("EC").generatePublic(X509EncodedKeySpec(der)).also { agreed(ephemeral().private, it) } // the JDK checks the point then
    } catch (error: GeneralSecurityException) {
        throw ConfigException("helper's key of ${der.size} bytes: expected P-256, as DER: ${error.message}", error)
    }

    /**
     * Return a text that only the owner of the key can open, for the same purpose. [ephemeral] is a
     * new key pair for this text alone.
     */
    fun seal(text: ByteArray, purpose: ByteArray, ephemeral: KeyPair): ByteArray {
        val encapsulated = pointOf(ephemeral.public.encoded)
        val exchange = extract(KEM, ByteArray(0), "eae_prk", agreed(ephemeral.private, key))
        val shared = expand(KEM, exchange, "shared_secret", encapsulated + pointOf(der), 32)
        val context = ByteArray(1) + extract(SUITE, ByteArray(0), "psk_id_hash", ByteArray(0)) + extract(SUITE, ByteArray(0), "info_hash", purpose)
        val secret = extract(SUITE, shared, "secret", ByteArray(0))
        val aes = SecretKeySpec(expand(SUITE, secret, "key", context, 16), "AES")
        val nonce = GCMParameterSpec(128, expand(SUITE, secret, "base_nonce", context, 12))
        return encapsulated + Cipher.getInstance("AES/GCM/NoPadding").apply { init(Cipher.ENCRYPT_MODE, aes, nonce) }.doFinal(text)
    }

    private fun agreed(private: PrivateKey, public: PublicKey): ByteArray = KeyAgreement.getInstance("ECDH").run {
        init(private)
        doPhase(public, true)
        generateSecret()
    }

    private fun extract(suite: ByteArray, salt: ByteArray, label: String, text: ByteArray) = hkdfExtract(salt, VERSION + suite + label.toByteArray() + text)

    private fun expand(suite: ByteArray, secret: ByteArray, label: String, info: ByteArray, count: Int) =
        hkdfExpand(secret, byteArrayOf(0, count.toByte()) + VERSION + suite + label.toByteArray() + info, count)

    internal companion object {
        private const val POINT_BYTES = 65

        /** Bytes before the point of a P-256 key in its SubjectPublicKeyInfo. */
        private val PREFIX = "3059301306072a8648ce3d020106082a8648ce3d030107034200".chunked(2).map { it.toInt(16).toByte() }.toByteArray()
        private val VERSION = "HPKE-v1".toByteArray()
        private val KEM = "KEM".toByteArray() + byteArrayOf(0, 16)
        private val SUITE = "HPKE".toByteArray() + byteArrayOf(0, 16, 0, 1, 0, 1)

        private fun pointOf(der: ByteArray): ByteArray = der.copyOfRange(der.size - POINT_BYTES, der.size)

        /** Return a new P-256 key pair. */
        fun ephemeral(): KeyPair = KeyPairGenerator.getInstance("EC").apply { initialize(ECGenParameterSpec("secp256r1")) }.generateKeyPair()
    }
}

/** Return a key of HKDF-SHA256 (RFC 5869, 2.2); an empty [salt] means none. */
internal fun hkdfExtract(salt: ByteArray, text: ByteArray): ByteArray = hmac(salt.takeIf { it.isNotEmpty() } ?: ByteArray(32), text)

/** Return [count] bytes of the output of HKDF-SHA256, at most 32 (RFC 5869, 2.3). */
internal fun hkdfExpand(key: ByteArray, info: ByteArray, count: Int): ByteArray {
    require(count in 1..32) { "count must be between 1 and 32, got $count" }
    return hmac(key, info + byteArrayOf(1)).copyOf(count)
}

private fun hmac(key: ByteArray, text: ByteArray): ByteArray = Mac.getInstance("HmacSHA256").run {
    init(SecretKeySpec(key, "HmacSHA256"))
    doFinal(text)
}
