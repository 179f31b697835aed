package io.shoal.core

import java.io.ByteArrayOutputStream
import java.util.Base64

/**
 * Return a certificate signing request (PKCS#10, RFC 2986) in PEM for an ECDSA P-256 key. Its
 * subject is the common name [name] alone, or empty if [name] is empty.
 *
 * @param publicKey SubjectPublicKeyInfo of the key, DER
 * @param sign function that returns the signature of bytes: ECDSA with SHA-256, DER
 */
@InternalShoalApi
public fun signingRequest(name: String, publicKey: ByteArray, sign: (ByteArray) -> ByteArray): String {
    val commonName = sequence(objectId(85, 4, 3), der(UTF8_STRING, name.toByteArray()))
    val subject = if (name.isEmpty()) sequence() else sequence(der(SET, commonName))
    val info = sequence(der(INTEGER, byteArrayOf(0)), subject, publicKey, der(ATTRIBUTES, ByteArray(0)))
    val ecdsaWithSha256 = sequence(objectId(42, 0x86, 0x48, 0xCE, 0x3D, 4, 3, 2))
    val signature = der(BIT_STRING, byteArrayOf(0) + sign(info))
    return pem("CERTIFICATE REQUEST", sequence(info, ecdsaWithSha256, signature))
}

private const val INTEGER = 0x02
private const val BIT_STRING = 0x03
private const val OBJECT_ID = 0x06
private const val UTF8_STRING = 0x0C
private const val SEQUENCE = 0x30
private const val SET = 0x31
private const val ATTRIBUTES = 0xA0

private fun sequence(vararg parts: ByteArray): ByteArray = der(SEQUENCE, parts.fold(ByteArray(0), ByteArray::plus))

private fun objectId(vararg bytes: Int): ByteArray = der(OBJECT_ID, ByteArray(bytes.size) { bytes[it].toByte() })

/**
 * Return tag, length and value (X.690). A length above 127 takes as many bytes as it needs, after
 * their number.
 */
private fun der(tag: Int, value: ByteArray): ByteArray {
    val out = ByteArrayOutputStream()
    out.write(tag)
    if (value.size < 128) {
        out.write(value.size)
    } else {
        val bytes = (3 downTo 0).map { value.size ushr (8 * it) and 0xFF }.dropWhile { it == 0 }
        out.write(0x80 or bytes.size)
        bytes.forEach(out::write)
    }
    out.write(value)
    return out.toByteArray()
}

private fun pem(label: String, bytes: ByteArray): String {
    val lines = Base64.getMimeEncoder(64, "\n".toByteArray()).encodeToString(bytes)
    return "-----BEGIN $label-----\n$lines\n-----END $label-----\n"
}
