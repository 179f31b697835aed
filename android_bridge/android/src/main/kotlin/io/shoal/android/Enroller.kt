package io.shoal.android

import io.shoal.android.FleetState.Blocked
import io.shoal.android.FleetState.Waiting
import io.shoal.core.ConfigException
import io.shoal.core.Enrolment
import io.shoal.core.EnrolmentAnswer
import io.shoal.core.EnrolmentKey
import io.shoal.core.EnrolmentRefused
import io.shoal.core.LinkException
import io.shoal.core.Log
import io.shoal.core.wire.PublicKey
import java.io.ByteArrayInputStream
import java.security.cert.CertificateFactory
import java.security.cert.X509Certificate

/** Where a phone enrols and renews; it blocks. */
internal interface EnrolmentDesk {
    /** Null: somebody has to approve the phone first. */
    fun enrol(token: String, key: EnrolmentKey, wanted: String, attest: ((String) -> String)?): Given?

    /** Another certificate (PEM) for the same key. */
    fun renew(certificate: String, authority: String, key: EnrolmentKey): String

    /** Whether so much of a certificate's time is over that it is to be renewed. */
    fun isDue(certificate: String): Boolean

    /** A service's answer. */
    class Given(
        val deviceId: String,
        val fleet: String,
        val broker: String,
        val certificate: String,
        val authority: String,
        val trust: String,
    )
}

/** The service at this address, over HTTPS. */
internal class ServiceDesk(address: String) : EnrolmentDesk {
    private val service = Enrolment(address)

    override fun enrol(token: String, key: EnrolmentKey, wanted: String, attest: ((String) -> String)?): EnrolmentDesk.Given? =
        when (val answer = service.enrol(token, key, wanted, attest)) {
            is EnrolmentAnswer.Waiting -> null
            is EnrolmentAnswer.Done -> answer.enrolled.run { EnrolmentDesk.Given(deviceId, fleet, broker, certificate, authority, trust) }
        }

    override fun renew(certificate: String, authority: String, key: EnrolmentKey): String = service.renew(certificate, authority, key)

    override fun isDue(certificate: String): Boolean = service.isDue(certificate)
}

/**
 * Enrols a phone, and renews its certificate. Whatever interrupts it, the next [advance] goes on: the key stays in the Keystore, and a
 * service gives the same token with the same key the same certificate.
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
     * Does what is to be done now with the service of these [settings], as the app gave them; null if the phone is enrolled, else what
     * stands in the way.
     *
     * @throws java.io.IOException a file cannot be written
     */
    @Synchronized
    fun advance(settings: ShoalSettings): FleetState? {
        val (service, key) = Pair(desk(requireNotNull(settings.service)), key())
        val held = files.enrolled
        if (held != null && key.isOf(held.certificate)) {
            val ended = System.currentTimeMillis() > first(held.certificate).notAfter.time
            val problem = if (ended || service.isDue(held.certificate)) renewed(service, key, held) else null
            if (problem == null || !ended) {
                problem?.let { log.write(Log.Level.WARNING, "fleet $fleet: the certificate is not renewed: $it") }
                files.enrolled?.let { if (!key.holds(it.certificate)) key.install(it.certificate) }
                return null
            }
            if (problem is Waiting) return problem
        }
        val asked = files.asked ?: return Blocked(Blocked.Reason.CERTIFICATE, lost(held))
        return asked.refusal ?: enrolled(service, key, settings, asked.token)
    }

    private fun lost(held: Enrolled?) =
        if (held == null) "there is no token" else "the certificate has ended, or its key is gone: the phone needs another token"

    private fun enrolled(service: EnrolmentDesk, key: DeviceKey, settings: ShoalSettings, token: String): FleetState? {
        val given = try {
            val by = settings.attestedBy()
            service.enrol(token, key, settings.deviceId.orEmpty(), by?.let { { nonce -> attested(it, nonce) } }) ?: return Waiting(Waiting.Why.APPROVAL)
        } catch (error: Unattested) {
            return later(LinkException(error.message.orEmpty(), error))
        } catch (error: LinkException) {
            return later(error)
        } catch (error: EnrolmentRefused) {
            return Blocked(REASONS[error.reason] ?: Blocked.Reason.SERVICE, error.message.orEmpty()).also { files.refuse(token, it) }
        } catch (error: ConfigException) {
            return Blocked(Blocked.Reason.SERVICE, error.message.orEmpty())
        }
        if (given.fleet != fleet) return Blocked(Blocked.Reason.SERVICE, "the service is of the fleet ${given.fleet}, and this is $fleet")
        if (settings.trustedKeyPem != null && !settings.insecure && PublicKey.parse(given.trust).none { it in settings.trusted }) {
            return Blocked(Blocked.Reason.SERVICE, "the service's root keys are none of those that the app trusts")
        }
        if (!wanted()) return Blocked(Blocked.Reason.CONSENT, "no consent")
        val hash = EnrolmentFolder.hashOf(token)
        val kept = Enrolled(given.deviceId, given.broker, given.certificate, given.authority, given.trust, hash)
        if (!files.take(token, kept)) return Waiting(Waiting.Why.ENROLMENT)
        key.install(given.certificate) // after a kill before this, the next job does it
        log.write(Log.Level.INFO, "fleet $fleet: this phone is enrolled as ${given.deviceId}")
        return null
    }

    /** What stands in the way of another certificate; null if there is one. */
    private fun renewed(service: EnrolmentDesk, key: DeviceKey, held: Enrolled): FleetState? = try {
        files.renew(held.renewed(service.renew(held.certificate, held.authority, key)))
        null
    } catch (error: LinkException) {
        later(error)
    } catch (error: ConfigException) {
        Blocked(Blocked.Reason.CERTIFICATE, error.message.orEmpty())
    }

    /** Not to be had now: another job may have it. */
    private class Unattested(cause: ConfigException) : RuntimeException("no attestation: ${cause.message}", cause)

    private fun attested(by: Attestation, nonce: String): String = try {
        attest(by, nonce)
    } catch (error: ConfigException) {
        throw Unattested(error)
    }

    private fun later(error: LinkException): FleetState {
        log.write(Log.Level.WARNING, error.message.orEmpty())
        return Waiting(Waiting.Why.NETWORK)
    }

    private fun first(pem: String) =
        CertificateFactory.getInstance("X.509").generateCertificate(ByteArrayInputStream(pem.toByteArray())) as X509Certificate

    private companion object {
        /** By what a service says (`wire/SPEC.md`, "Enrolment"). */
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
