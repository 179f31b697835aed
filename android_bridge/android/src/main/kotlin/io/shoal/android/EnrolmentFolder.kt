package io.shoal.android

import io.shoal.android.FleetState.Blocked
import java.io.File
import java.security.MessageDigest
import java.util.Locale
import java.util.Properties

/**
 * Credentials that a service issued to this phone. All texts but the id and the broker's address
 * are PEM.
 */
internal class PhoneCredentials(
    val deviceId: String,
    val broker: String,
    val certificate: String,
    val authority: String,
    val trust: String,
    val tokenHash: String,
) {
    fun renewed(certificate: String) = PhoneCredentials(deviceId, broker, certificate, authority, trust, tokenHash)

    fun write(): Map<String, String> = mapOf(
        "deviceId" to deviceId,
        "broker" to broker,
        "certificate" to certificate,
        "authority" to authority,
        "trust" to trust,
        "tokenHash" to tokenHash,
    )

    companion object {
        /** Return the stored credentials, or null if one is missing. */
        fun read(stored: Properties): PhoneCredentials? {
            val names = listOf("deviceId", "broker", "certificate", "authority", "trust", "tokenHash")
            val values = names.map { stored.getProperty(it) ?: return null }
            return PhoneCredentials(values[0], values[1], values[2], values[3], values[4], values[5])
        }
    }
}

/**
 * Token that the phone is to enrol with, and the reason why the service refused it for good, or
 * null.
 */
internal class PendingToken(val token: String, val refusal: Blocked?)

/**
 * Files of an enrolment in a fleet's folder: `token.properties`, and then `enrolled.properties`.
 * Each is written completely or not at all. A token is deleted once it was used. Credentials that
 * come after the phone has left are not stored.
 */
internal class EnrolmentFolder(private val folder: () -> File) {
    private val enrolledFile get() = File(folder(), "enrolled.properties")
    private val tokenFile get() = File(folder(), "token.properties")

    /** Credentials of the phone, or null before it is enrolled. */
    val credentials: PhoneCredentials? get() = synchronized(Home.LOCK) { PhoneCredentials.read(propertiesIn(enrolledFile)) }

    /** Token that waits, or null. */
    val pendingToken: PendingToken?
        get() = synchronized(Home.LOCK) {
            val stored = propertiesIn(tokenFile)
            val token = stored.getProperty("token") ?: return null
            val reason = Blocked.Reason.values().firstOrNull { it.name == stored.getProperty("reason") }
            PendingToken(token, reason?.let { Blocked(it, stored.getProperty("detail").orEmpty()) })
        }

    /**
     * Store a token, unless it is the one that waits, or the one that the phone is enrolled with.
     */
    fun store(token: String): Unit = synchronized(Home.LOCK) {
        if (pendingToken?.token != token && credentials?.tokenHash != hashOf(token)) write(tokenFile, mapOf("token" to token))
    }

    /** Store that the service refuses this token for good. */
    fun refuse(token: String, refusal: Blocked): Unit = synchronized(Home.LOCK) {
        if (pendingToken?.token == token) write(tokenFile, mapOf("token" to token, "reason" to refusal.reason.name, "detail" to refusal.detail))
    }

    /**
     * Store the credentials that this token brought, and return true, or false if the token is no
     * longer wanted.
     */
    fun take(token: String, credentials: PhoneCredentials): Boolean = synchronized(Home.LOCK) {
        if (pendingToken?.token != token) return false
        write(enrolledFile, credentials.write())
        tokenFile.delete()
        true
    }

    /** Store a new certificate. */
    fun renew(credentials: PhoneCredentials): Unit = synchronized(Home.LOCK) {
        if (enrolledFile.exists()) write(enrolledFile, credentials.write())
    }

    private fun write(file: File, values: Map<String, String>) = writeProperties(file, Properties().apply { putAll(values) })

    companion object {
        fun hashOf(token: String): String =
            MessageDigest.getInstance("SHA-256").digest(token.toByteArray()).joinToString("") { "%02x".format(Locale.ROOT, it) }
    }
}
