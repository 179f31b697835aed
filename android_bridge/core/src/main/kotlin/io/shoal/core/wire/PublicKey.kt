package io.shoal.core.wire

import io.shoal.core.BundleException
import io.shoal.core.InternalShoalApi
import java.util.Base64

/**
 * Ed25519 public key: a root key that signs bundles and vouches for services, or the key of a
 * service.
 */
@InternalShoalApi
public class PublicKey private constructor(private val point: Ed25519.Point, private val encoded: ByteArray) {
    /**
     * Return true if [signature] (64 bytes) over [message] was made with the private half of this
     * key.
     */
    public fun verify(signature: ByteArray, message: ByteArray): Boolean = Ed25519.verify(point, encoded, signature, message)

    override fun equals(other: Any?): Boolean = other is PublicKey && encoded.contentEquals(other.encoded)

    override fun hashCode(): Int = encoded.contentHashCode()

    public companion object {
        /** Bytes before the key's 32 bytes in its SubjectPublicKeyInfo (RFC 8410). */
        private val PREFIX = byteArrayOf(0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00)

        /**
         * Return the key of 32 bytes in the encoding of RFC 8032.
         *
         * @throws BundleException the bytes are no such key
         */
        public fun of(encoded: ByteArray): PublicKey =
            PublicKey(Ed25519.decode(encoded) ?: throw BundleException("trusted key: not an Ed25519 public key"), encoded.copyOf())

        /**
         * Parse the PEM text of one or more keys (`-----BEGIN PUBLIC KEY-----`), as `shoal export`
         * writes it to `trust.pem`. To replace a key, add the new one everywhere before the old one
         * is removed.
         *
         * @throws BundleException there is no key, or one that is not an Ed25519 public key
         */
        public fun parse(pem: String): List<PublicKey> {
            val blocks = BLOCK.findAll(pem).map { it.groupValues }.toList()
            if (blocks.isEmpty()) throw BundleException("trusted key: not a PEM public key")
            return blocks.map { (_, label, body) ->
                if (label != "PUBLIC KEY") throw BundleException("trusted key: expected a PEM block PUBLIC KEY, got '${label.take(80)}'")
                fromDer(body)
            }
        }

        private fun fromDer(body: String): PublicKey {
            val der = try {
                Base64.getDecoder().decode(body.filterNot { it.isWhitespace() })
            } catch (error: IllegalArgumentException) {
                throw BundleException("trusted key: not a PEM public key: ${error.message}")
            }
            if (der.size != PREFIX.size + 32 || !der.copyOf(PREFIX.size).contentEquals(PREFIX)) {
                throw BundleException("trusted key: not an Ed25519 public key")
            }
            return of(der.copyOfRange(PREFIX.size, der.size))
        }

        private val BLOCK = Regex("-----BEGIN ([A-Z ]+)-----(.*?)-----END \\1-----", RegexOption.DOT_MATCHES_ALL)
    }
}
