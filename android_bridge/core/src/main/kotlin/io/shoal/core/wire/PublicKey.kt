package io.shoal.core.wire

import io.shoal.core.BundleException
import io.shoal.core.InternalShoalApi
import java.util.Base64
import org.bouncycastle.math.ec.rfc8032.Ed25519

/**
 * Ed25519 public key: a root key that signs bundles and vouches for services, or the key of a
 * service. Android verifies Ed25519 only since API 33, so BouncyCastle does.
 */
@InternalShoalApi
public class PublicKey private constructor(private val encoded: ByteArray) {
    /**
     * Return true if [signature] (64 bytes) over [message] was made with the private half of this
     * key.
     */
    public fun verify(signature: ByteArray, message: ByteArray): Boolean =
        signature.size == Ed25519.SIGNATURE_SIZE && Ed25519.verify(signature, 0, encoded, 0, message, 0, message.size)

    override fun equals(other: Any?): Boolean = other is PublicKey && encoded.contentEquals(other.encoded)

    override fun hashCode(): Int = encoded.contentHashCode()

    public companion object {
        /** Bytes before the key's 32 bytes in its SubjectPublicKeyInfo (RFC 8410). */
        private val PREFIX = byteArrayOf(0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00)

        /**
         * Return the key of 32 bytes in the encoding of RFC 8032.
         *
         * @throws BundleException the bytes are no such key, or a point of small order
         */
        public fun of(encoded: ByteArray): PublicKey {
            if (encoded.size != Ed25519.PUBLIC_KEY_SIZE || isOfSmallOrder(encoded) || !Ed25519.validatePublicKeyPartial(encoded, 0)) {
                throw BundleException("trusted key: not an Ed25519 public key")
            }
            return PublicKey(encoded.copyOf())
        }

        /** Return true if the point, without its sign, is one of eight for which anybody can sign. */
        private fun isOfSmallOrder(encoded: ByteArray): Boolean =
            (encoded.copyOf(31) + (encoded[31].toInt() and 0x7f).toByte()).joinToString("") { "%02x".format(it) } in SMALL_ORDER

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

        private val SMALL_ORDER = setOf(
            "00".repeat(32),
            "01" + "00".repeat(31),
            "ec" + "ff".repeat(30) + "7f",
            "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
            "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        )

        private val BLOCK = Regex("-----BEGIN ([A-Z ]+)-----(.*?)-----END \\1-----", RegexOption.DOT_MATCHES_ALL)
    }
}
