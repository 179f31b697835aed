package io.shoal.core

import io.shoal.core.wire.Fields
import io.shoal.core.wire.PublicKey
import io.shoal.core.wire.digest
import io.shoal.core.wire.isName
import io.shoal.core.wire.jsonText
import io.shoal.core.wire.parseJson
import java.security.MessageDigest
import java.security.GeneralSecurityException
import java.security.cert.X509Certificate

/** A device's P-256 key, wherever it is kept: it need not be able to leave that place. */
@InternalShoalApi
public interface EnrolmentKey {
    /** The SubjectPublicKeyInfo, DER. */
    public val publicKey: ByteArray

    /** ECDSA with SHA-256 over [bytes], DER. */
    public fun sign(bytes: ByteArray): ByteArray
}

/** All that an enrolled device needs to take part; [certificate], [authority] and [trust] are PEM, [policy] is a suggestion (TOML). */
@InternalShoalApi
public class Enrolled internal constructor(
    public val deviceId: String,
    public val fleet: String,
    public val broker: String,
    public val certificate: String,
    public val authority: String,
    public val trust: String,
    public val policy: String,
)

/** A service refuses a device; [reason] is one of the table in `wire/SPEC.md`, "Enrolment". */
@InternalShoalApi
public class EnrolmentRefused(public val reason: String, message: String) : ConfigException(message)

/** What a service answers to a device that wants to be enrolled. */
@InternalShoalApi
public sealed class EnrolmentAnswer {
    /** The device is enrolled. */
    public class Done internal constructor(public val enrolled: Enrolled) : EnrolmentAnswer()

    /** Somebody has to approve the device; it asks again after [retryS] seconds. */
    public class Waiting internal constructor(public val deviceId: String, public val retryS: Double) : EnrolmentAnswer()
}

/** Enrolls a device at the service at [address], and renews its certificate (`wire/SPEC.md`, "Enrolment"). It blocks; it keeps nothing. */
@InternalShoalApi
public class Enrolment(private val address: String, private val nowMs: () -> Long = System::currentTimeMillis) {
    private val service = EnrolmentService(address)

    /**
     * Asks once. The same token and [key] may ask again and again, and get the same answer. [wanted] is the id that the device wants; the
     * token's, or one of the key, where it is empty. [attest] says of a nonce what somebody who is trusted with that says of this app and
     * phone; a service may require it.
     *
     * @throws ConfigException the token cannot be used, or another service answers; [EnrolmentRefused] if the service refuses
     * @throws LinkException the service cannot be reached, or has too much to do
     */
    public fun enrol(token: String, key: EnrolmentKey, wanted: String = "", attest: ((nonce: String) -> String)? = null): EnrolmentAnswer {
        val read = EnrolmentToken.parse(token)
        if (wanted.isNotEmpty() && !isName(wanted)) throw ConfigException("device id '$wanted': expected 1 to 64 of A-Z a-z 0-9 . _ -")
        val authority = service.authority(read.authority)
        val asked = linkedMapOf("token" to read.text, "request" to signingRequest(wanted, key.publicKey, key::sign))
        attest?.let { asked["attestation"] = it(attestationNonce(read.text, key.publicKey)) }
        val answer = answer(service.post("/enrolment/enrol", jsonText(asked), authority))
        return when (answer.string("type")) {
            "waiting" -> EnrolmentAnswer.Waiting(answer.name("device_id"), answer.double("retry_s"))
            "enrolled" -> EnrolmentAnswer.Done(checked(answer, key, authority, wanted))
            else -> refuse(answer)
        }
    }

    /**
     * Another certificate (PEM) for the same [key] before [certificate] ends; due when [isDue] says so. [authority] is what the device was
     * enrolled with.
     *
     * @throws ConfigException the service answers what it must not; [EnrolmentRefused] if it refuses
     * @throws LinkException the service cannot be reached, or has too much to do
     */
    public fun renew(certificate: String, authority: String, key: EnrolmentKey): String = contained {
        val old = certificateOf(certificate)
        val deviceId = commonName(old)
        val request = signingRequest(deviceId, key.publicKey, key::sign)
        val signature = hex(key.sign("shoal-enrolment-renew\n${digest(request.toByteArray())}".toByteArray()))
        val asked = jsonText(mapOf("certificate" to certificate, "request" to request, "signature" to signature))
        val answer = answer(service.post("/enrolment/renew", asked, certificateOf(authority)))
        if (answer.string("type") != "renewed") refuse(answer)
        answer.string("certificate").also { check(certificateOf(it), key, certificateOf(authority), deviceId) }
    }

    /** Whether so much of a certificate's time is over that it is to be renewed. */
    public fun isDue(certificate: String): Boolean {
        val read = certificateOf(certificate)
        return nowMs() > read.notBefore.time + RENEW_AFTER * (read.notAfter.time - read.notBefore.time)
    }

    private fun checked(answer: Fields, key: EnrolmentKey, authority: X509Certificate, wanted: String): Enrolled = contained {
        val deviceId = answer.name("device_id")
        if (wanted.isNotEmpty() && deviceId != wanted) throw Malformed("it is for $deviceId, and $wanted was wanted")
        check(certificateOf(answer.string("certificate")), key, authority, deviceId)
        val given = certificateOf(answer.string("authority"))
        if (given != authority) throw Malformed("its authority is not the one that the token knows")
        val trust = answer.string("trust")
        if (PublicKey.parse(trust).isEmpty()) throw Malformed("it has no root key")
        val broker = answer.string("broker")
        if (!broker.startsWith("mqtts://")) throw Malformed("the broker is $broker, expected mqtts://")
        val certificate = answer.string("certificate")
        Enrolled(deviceId, answer.name("fleet"), broker, certificate, answer.string("authority"), trust, answer.string("policy", ""))
    }

    private fun check(certificate: X509Certificate, key: EnrolmentKey, authority: X509Certificate, deviceId: String) {
        if (!certificate.publicKey.encoded.contentEquals(key.publicKey)) throw Malformed("the certificate is for another key")
        if (commonName(certificate) != deviceId) throw Malformed("the certificate is for ${commonName(certificate)}, not for $deviceId")
        if (certificate.extendedKeyUsage != listOf(CLIENT)) throw Malformed("the certificate is not for a client")
        try {
            certificate.verify(authority.publicKey)
            certificate.checkValidity(java.util.Date(nowMs()))
        } catch (error: GeneralSecurityException) {
            throw Malformed("the certificate is not of this authority, or not valid by this device's clock: ${error.message}")
        }
    }

    private fun commonName(certificate: X509Certificate): String {
        val name = certificate.subjectX500Principal.name
        val id = name.removePrefix("CN=")
        if (id == name || !isName(id)) throw Malformed("the certificate is for $name, expected a device's id alone")
        return id
    }

    private fun answer(payload: ByteArray): Fields = try {
        Fields(parseJson(payload), "answer").also { it.oneOf("type", TYPES) }
    } catch (error: WireException) {
        throw LinkException("$address: it answers nothing that is known: ${error.message}", error)
    }

    private fun refuse(answer: Fields): Nothing {
        val told = "$address refuses: ${answer.string("reason", "")}: ${answer.string("detail", "")}"
        val reason = answer.string("reason", "")
        throw if (reason in LATER) LinkException(told) else EnrolmentRefused(reason, told)
    }

    private fun <T> contained(act: () -> T): T = try {
        act()
    } catch (error: WireException) {
        throw ConfigException("what $address answered cannot be used: ${error.message}", error)
    }

    private companion object {
        const val RENEW_AFTER = 0.6
        const val CLIENT = "1.3.6.1.5.5.7.3.2"
        val TYPES = listOf("enrolled", "renewed", "waiting", "refused")
        val LATER = listOf("too-many", "busy")
    }
}

/** What an attestation has to be of: this token, and the key that is to get the certificate. 43 characters of URL-safe base64. */
internal fun attestationNonce(token: String, publicKey: ByteArray): String {
    val of = "shoal-attestation\n${digest(token.toByteArray())}\n${digest(publicKey)}"
    return java.util.Base64.getUrlEncoder().withoutPadding().encodeToString(MessageDigest.getInstance("SHA-256").digest(of.toByteArray()))
}
