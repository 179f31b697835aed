package io.shoal.core.wire

import io.shoal.core.BundleException
import java.util.Base64

/** An Ed25519 public key that bundles must be signed with. */
public class PublicKey private constructor(private val point: Ed25519.Point, private val encoded: ByteArray) {
    /** Whether [signature] (64 bytes) over [message] was made with this key's private half. */
    public fun verify(signature: ByteArray, message: ByteArray): Boolean = Ed25519.verify(point, encoded, signature, message)

    public companion object {
        /** What comes before the key's 32 bytes in its SubjectPublicKeyInfo (RFC 8410). */
        private val PREFIX = byteArrayOf(0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00)

        /**
         * A key of 32 bytes as RFC 8032 encodes it.
         *
         * @throws BundleException not such a key
         */
        public fun of(encoded: ByteArray): PublicKey =
            PublicKey(Ed25519.decode(encoded) ?: throw BundleException("trusted key: not an Ed25519 public key"), encoded.copyOf())

        /**
         * Reads PEM text (`-----BEGIN PUBLIC KEY-----`), as `shoal export` writes it to `trust.pem`.
         *
         * @throws BundleException not an Ed25519 public key
         */
        public fun parse(pem: String): PublicKey {
            val lines = pem.lines().map { it.trim() }
            val begin = lines.indexOf("-----BEGIN PUBLIC KEY-----")
            val end = lines.indexOf("-----END PUBLIC KEY-----")
            if (begin < 0 || end < begin) throw BundleException("trusted key: not a PEM public key")
            val der = try {
                Base64.getDecoder().decode(lines.subList(begin + 1, end).joinToString(""))
            } catch (error: IllegalArgumentException) {
                throw BundleException("trusted key: not a PEM public key: ${error.message}")
            }
            if (der.size != PREFIX.size + 32 || !der.copyOf(PREFIX.size).contentEquals(PREFIX)) {
                throw BundleException("trusted key: not an Ed25519 public key")
            }
            return of(der.copyOfRange(PREFIX.size, der.size))
        }
    }
}
