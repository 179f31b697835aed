package io.shoal.core

import io.shoal.core.wire.digest
import java.util.Base64

/**
 * Token by which a device is enrolled (`wire/SPEC.md`, "Enrolment"). [authority] is the SHA-256 of
 * the certificate of the service's authority, by which the device recognises the service.
 */
@InternalShoalApi
public class EnrolmentToken private constructor(public val text: String, internal val secret: ByteArray, public val authority: String) {
    public companion object {
        private const val PREFIX = "shoal1."
        private const val SECRET_BYTES = 16
        private const val BODY_BYTES = SECRET_BYTES + 32
        private const val SUM_CHARACTERS = 6

        /**
         * Parse a token.
         *
         * @throws ConfigException the text is not a token, or was damaged on the way
         */
        public fun parse(input: String): EnrolmentToken {
            val text = input.trim()
            val bytes = try {
                Base64.getUrlDecoder().decode(text.removePrefix(PREFIX))
            } catch (_: IllegalArgumentException) {
                ByteArray(0)
            }
            if (!text.startsWith(PREFIX) || text.length != PREFIX.length + 68 || bytes.size != BODY_BYTES + SUM_CHARACTERS / 2) {
                throw ConfigException("token of ${text.length} characters: expected $PREFIX and 68 more characters, as `shoal enrol token` prints it")
            }
            val body = bytes.copyOf(BODY_BYTES)
            if (digest(body).take(SUM_CHARACTERS) != hex(bytes.copyOfRange(BODY_BYTES, bytes.size))) {
                throw ConfigException("token: one of its characters is wrong; copy it again")
            }
            return EnrolmentToken(text, body.copyOf(SECRET_BYTES), hex(body.copyOfRange(SECRET_BYTES, BODY_BYTES)))
        }
    }
}

internal fun hex(bytes: ByteArray): String = bytes.joinToString("") { "%02x".format(java.util.Locale.ROOT, it.toInt() and 0xFF) }
