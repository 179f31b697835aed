package io.shoal.android

import io.shoal.android.FleetState.Blocked
import io.shoal.android.FleetState.Waiting
import io.shoal.core.ConfigException
import io.shoal.core.Enrolment
import io.shoal.core.EnrolmentAnswer
import io.shoal.core.EnrolmentKey
import io.shoal.core.EnrolmentRefusedException
import io.shoal.core.LinkException
import io.shoal.core.Log
import io.shoal.core.wire.PublicKey
import java.io.ByteArrayInputStream
import java.security.cert.CertificateFactory
import java.security.cert.X509Certificate

/** Service at which a phone enrols and renews its certificate. Its functions block. */
internal interface EnrolmentDesk {
    /**
     * Enrol the phone, and return its credentials, or null if an operator has to approve it first.
     */
    fun enrol(token: String, key: EnrolmentKey, wanted: String, attest: ((String) -> String)?): Credentials?

    /** Return a new certificate (PEM) for the same key. */
    fun renew(certificate: String, authority: String, key: EnrolmentKey): String

    /** Return true if a certificate is due for renewal. */
    fun isDue(certificate: String): Boolean

    /** Credentials from a service. */
    class Credentials(
        val deviceId: String,
        val fleet: String,
        val broker: String,
        val certificate: String,
        val authority: String,
        val trust: String,
    )
}

/** Service at this address, over HTTPS. */
internal class ServiceDesk(address: String) : EnrolmentDesk {
    private val service = Enrolment(address)

    override fun enrol(token: String, key: EnrolmentKey, wanted: String, attest: ((String) -> String)?): EnrolmentDesk.Credentials? =
        when (val answer = service.enrol(token, key, wanted, attest)) {
            is EnrolmentAnswer.Waiting -> null
            is EnrolmentAnswer.Done -> answer.enrolled.run { EnrolmentDesk.Credentials(deviceId, fleet, broker, certificate, authority, trust) }
        }

    override fun renew(certificate: String, authority: String, key: EnrolmentKey): String = service.renew(certificate, authority, key)

    override fun isDue(certificate: String): Boolean = service.isDue(certificate)
}

/**
 * Enrolment of a phone, and renewal of its certificate. After any interruption the next [advance]
 * continues: the key stays in the Keystore, and a service issues the same certificate for the same
 * token and key.
 */
internal class Enroller(
    private val fleet: String,
    private val files: EnrolmentFolder,
    private val desk: (String) -> EnrolmentDesk,
    private val key: () -> DeviceKey,
    private val wanted: () -> Boolean,
    private val log: Log,
    private val attest: (Attestation, String) -> String,
) {
    /**
     * Do the next step with the service of these [settings], as the app gave them. Return null if
     * the phone is enrolled, or the obstacle.
     *
     * @throws java.io.IOException a file cannot be written
     */
    @Synchronized
    fun advance(settings: ShoalSettings): FleetState? {
        val (service, key) = Pair(desk(requireNotNull(settings.service)), key())
        val credentials = files.credentials
        if (credentials != null && key.isOf(credentials.certificate)) {
            val ended = System.currentTimeMillis() > first(credentials.certificate).notAfter.time
            val problem = if (ended || service.isDue(credentials.certificate)) renew(service, key, credentials) else null
            if (problem == null || !ended) {
                problem?.let { log.write(Log.Level.WARNING, "the certificate is not renewed fleet=$fleet: $it") }
                files.credentials?.let { if (!key.holds(it.certificate)) key.install(it.certificate) }
                return null
            }
            if (problem is Waiting) return problem
        }
        val pendingToken = files.pendingToken ?: return if (credentials == null) Waiting(Waiting.Reason.ENROLMENT) else LOST
        return pendingToken.refusal ?: enrol(service, key, settings, pendingToken.token)
    }

    private fun enrol(service: EnrolmentDesk, key: DeviceKey, settings: ShoalSettings, token: String): FleetState? {
        val issued = try {
            val provider = settings.attestationProvider()
            service.enrol(token, key, settings.deviceId.orEmpty(), provider?.let { { nonce -> attestation(it, nonce) } }) ?: return Waiting(Waiting.Reason.APPROVAL)
        } catch (error: UnattestedException) {
            return later(LinkException(error.message.orEmpty(), error))
        } catch (error: LinkException) {
            return later(error)
        } catch (error: EnrolmentRefusedException) {
            return Blocked(REASONS[error.reason] ?: Blocked.Reason.SERVICE, error.message.orEmpty()).also { files.refuse(token, it) }
        } catch (error: ConfigException) {
            return Blocked(Blocked.Reason.SERVICE, error.message.orEmpty())
        }
        if (issued.fleet != fleet) return Blocked(Blocked.Reason.SERVICE, "the service belongs to fleet ${issued.fleet}, and this is fleet $fleet")
        if (settings.trustedKeyPem != null && !settings.insecure && PublicKey.parse(issued.trust).none { it in settings.trusted }) {
            return Blocked(Blocked.Reason.SERVICE, "the app trusts none of the service's root keys")
        }
        if (!wanted()) return Blocked(Blocked.Reason.CONSENT, "no consent")
        val hash = EnrolmentFolder.hashOf(token)
        val credentials = PhoneCredentials(issued.deviceId, issued.broker, issued.certificate, issued.authority, issued.trust, hash)
        if (!files.take(token, credentials)) return Waiting(Waiting.Reason.ENROLMENT)
        key.install(issued.certificate) // if the process is killed before, the next job does it
        log.write(Log.Level.INFO, "this phone is enrolled fleet=$fleet device=${issued.deviceId}")
        return null
    }

    /** Renew the certificate. Return null, or the obstacle. */
    private fun renew(service: EnrolmentDesk, key: DeviceKey, credentials: PhoneCredentials): FleetState? = try {
        files.renew(credentials.renewed(service.renew(credentials.certificate, credentials.authority, key)))
        null
    } catch (error: LinkException) {
        later(error)
    } catch (error: ConfigException) {
        Blocked(Blocked.Reason.CERTIFICATE, error.message.orEmpty())
    }

    /** A missing attestation. Another job may get one. */
    private class UnattestedException(cause: ConfigException) : RuntimeException("no attestation: ${cause.message}", cause)

    private fun attestation(provider: Attestation, nonce: String): String = try {
        attest(provider, nonce)
    } catch (error: ConfigException) {
        throw UnattestedException(error)
    }

    private fun later(error: LinkException): FleetState {
        log.write(Log.Level.WARNING, error.message.orEmpty())
        return Waiting(Waiting.Reason.NETWORK)
    }

    private fun first(pem: String) =
        CertificateFactory.getInstance("X.509").generateCertificate(ByteArrayInputStream(pem.toByteArray())) as X509Certificate

    private companion object {
        val LOST = Blocked(Blocked.Reason.CERTIFICATE, "the certificate has expired, or its key is gone: the phone needs another token")

        /** Reasons by the service's reason (`wire/SPEC.md`, "Enrolment"). */
        val REASONS = mapOf(
            "token" to Blocked.Reason.TOKEN_UNKNOWN,
            "used" to Blocked.Reason.TOKEN_USED,
            "expired" to Blocked.Reason.TOKEN_EXPIRED,
            "other-name" to Blocked.Reason.NAME_TAKEN,
            "taken" to Blocked.Reason.NAME_TAKEN,
            "banned" to Blocked.Reason.BANNED,
            "rejected" to Blocked.Reason.BANNED,
            "attestation" to Blocked.Reason.ATTESTATION,
        )
    }
}
