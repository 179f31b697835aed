package io.shoal.core

import io.shoal.core.wire.Fields
import io.shoal.core.wire.PublicKey
import io.shoal.core.wire.digest
import io.shoal.core.wire.isName
import io.shoal.core.wire.jsonText
import io.shoal.core.wire.parseJson
import java.security.GeneralSecurityException
import java.security.MessageDigest
import java.security.cert.X509Certificate

/** P-256 key of a device. It may lie in a store that it cannot leave. */
@InternalShoalApi
public interface EnrolmentKey {
    /** SubjectPublicKeyInfo of the key, DER. */
    public val publicKey: ByteArray

    /** Return the signature of [bytes]: ECDSA with SHA-256, DER. */
    public fun sign(bytes: ByteArray): ByteArray
}

/**
 * Credentials and addresses that an enrolled device needs to take part. [certificate], [authority]
 * and [trust] are PEM. [policy] is a suggestion, TOML.
 */
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

/**
 * A refusal of a device by a service. [reason] is one of the table in `wire/SPEC.md`, "Enrolment".
 */
@InternalShoalApi
public class EnrolmentRefusedException(public val reason: String, message: String) : ConfigException(message)

/** Answer of a service to a device that asks to be enrolled. */
@InternalShoalApi
public sealed class EnrolmentAnswer {
    /** The device is enrolled. */
    public class Done internal constructor(public val enrolled: Enrolled) : EnrolmentAnswer()

    /** An operator has to approve the device, which asks again after [retryS] seconds. */
    public class Waiting internal constructor(public val deviceId: String, public val retryS: Double) : EnrolmentAnswer()
}

/**
 * Enrolment of a device at the service at [address], and renewal of its certificate
 * (`wire/SPEC.md`, "Enrolment"). The functions block, and store nothing.
 */
@InternalShoalApi
public class Enrolment(private val address: String, private val nowMs: () -> Long = System::currentTimeMillis) {
    private val service = EnrolmentService(address)

    /**
     * Ask once to be enrolled. The same token and [key] may ask again, and get the same answer.
     *
     * @param wanted id that the device wants; empty for the token's id, or an id made from the key
     * @param attest function that returns an attestation of this app and phone for a nonce, if the
     *   service requires one
     * @throws ConfigException the token is invalid, or another service answers; [EnrolmentRefusedException]
     *   if the service refuses
     * @throws LinkException the service cannot be reached, or is overloaded
     */
    public fun enrol(token: String, key: EnrolmentKey, wanted: String = "", attest: ((nonce: String) -> String)? = null): EnrolmentAnswer {
        val parsedToken = EnrolmentToken.parse(token)
        if (wanted.isNotEmpty() && !isName(wanted)) throw ConfigException("device id '$wanted': expected 1 to 64 characters of A-Z a-z 0-9 . _ -")
        val request = linkedMapOf("token" to parsedToken.text, "request" to signingRequest(wanted, key.publicKey, key::sign))
        if (attest != null) {
            service.verify(parsedToken.authority) // an attestation counts against the app's quota
            request["attestation"] = attest(attestationNonce(parsedToken.text, key.publicKey))
        }
        val answer = answer(service.post("/enrolment/enrol", jsonText(request), parsedToken.authority))
        return contained {
            when (answer.string("type")) {
                "waiting" -> EnrolmentAnswer.Waiting(answer.name("device_id"), answer.double("retry_s"))
                "enrolled" -> EnrolmentAnswer.Done(checked(answer, key, parsedToken.authority, wanted))
                else -> refuse(answer)
            }
        }
    }

    /**
     * Return a new certificate (PEM) for the same [key], before [certificate] expires; see [isDue].
     *
     * @param authority authority (PEM) that the device was enrolled with
     * @throws ConfigException the answer is invalid; [EnrolmentRefusedException] if the service refuses
     * @throws LinkException the service cannot be reached, or is overloaded
     */
    public fun renew(certificate: String, authority: String, key: EnrolmentKey): String = contained {
        val old = certificateOf(certificate)
        val deviceId = commonName(old)
        val request = signingRequest(deviceId, key.publicKey, key::sign)
        val signature = hex(key.sign("shoal-enrolment-renew\n${digest(request.toByteArray())}".toByteArray()))
        val body = jsonText(mapOf("certificate" to certificate, "request" to request, "signature" to signature))
        val parsedAuthority = certificateOf(authority)
        val answer = answer(service.post("/enrolment/renew", body, digest(parsedAuthority.encoded)))
        if (answer.string("type") != "renewed") refuse(answer)
        answer.string("certificate").also { check(certificateOf(it), key, parsedAuthority, deviceId) }
    }

    /** Return true if a certificate is due for renewal. */
    public fun isDue(certificate: String): Boolean {
        val parsed = certificateOf(certificate)
        return nowMs() > parsed.notBefore.time + RENEW_AFTER * (parsed.notAfter.time - parsed.notBefore.time)
    }

    private fun checked(answer: Fields, key: EnrolmentKey, fingerprint: String, wanted: String): Enrolled {
        val deviceId = answer.name("device_id")
        if (wanted.isNotEmpty() && deviceId != wanted) throw MalformedException("it enrols $deviceId instead of $wanted")
        val authority = certificateOf(answer.string("authority"))
        if (digest(authority.encoded) != fingerprint) throw MalformedException("its authority is not the token's")
        check(certificateOf(answer.string("certificate")), key, authority, deviceId)
        val trust = answer.string("trust")
        if (PublicKey.parse(trust).isEmpty()) throw MalformedException("it contains no root key")
        val broker = answer.string("broker")
        if (!broker.startsWith("mqtts://")) throw MalformedException("the broker must be mqtts://HOST[:PORT], got $broker")
        val certificate = answer.string("certificate")
        return Enrolled(deviceId, answer.name("fleet"), broker, certificate, answer.string("authority"), trust, answer.string("policy", ""))
    }

    private fun check(certificate: X509Certificate, key: EnrolmentKey, authority: X509Certificate, deviceId: String) {
        if (!certificate.publicKey.encoded.contentEquals(key.publicKey)) throw MalformedException("the certificate is for another key")
        if (commonName(certificate) != deviceId) throw MalformedException("the certificate is for device ${commonName(certificate)} instead of $deviceId")
        if (certificate.extendedKeyUsage != listOf(CLIENT)) throw MalformedException("the certificate is not for a client")
        try {
            certificate.verify(authority.publicKey)
            certificate.checkValidity(java.util.Date(nowMs()))
        } catch (error: GeneralSecurityException) {
            throw MalformedException("the certificate is not signed by this authority, or not valid by this device's clock: ${error.message}")
        }
    }

    private fun commonName(certificate: X509Certificate): String {
        val name = certificate.subjectX500Principal.name
        val id = name.removePrefix("CN=")
        if (id == name || !isName(id)) throw MalformedException("the certificate must name a device's id alone, got $name")
        return id
    }

    private fun answer(payload: ByteArray): Fields = try {
        Fields(parseJson(payload), "answer").also { it.oneOf("type", TYPES) }
    } catch (error: WireException) {
        throw LinkException("$address: invalid answer, is this the enrolment address of the service? ${error.message}", error)
    }

    private fun refuse(answer: Fields): Nothing {
        val refusal = "$address refused the enrolment: ${answer.string("reason", "")}: ${answer.string("detail", "")}"
        val reason = answer.string("reason", "")
        throw if (reason in LATER) LinkException(refusal) else EnrolmentRefusedException(reason, refusal)
    }

    private fun <T> contained(act: () -> T): T = try {
        act()
    } catch (error: WireException) {
        throw ConfigException("$address: invalid answer: ${error.message}", error)
    }

    private companion object {
        const val RENEW_AFTER = 0.6
        const val CLIENT = "1.3.6.1.5.5.7.3.2"
        val TYPES = listOf("enrolled", "renewed", "waiting", "refused")
        val LATER = listOf("too-many", "busy")
    }
}

/**
 * Return the nonce that an attestation must contain: a hash of the token and of the key for the
 * certificate, in 43 characters of URL-safe base64.
 */
internal fun attestationNonce(token: String, publicKey: ByteArray): String {
    val of = "shoal-attestation\n${digest(token.toByteArray())}\n${digest(publicKey)}"
    return java.util.Base64.getUrlEncoder().withoutPadding().encodeToString(MessageDigest.getInstance("SHA-256").digest(of.toByteArray()))
}
