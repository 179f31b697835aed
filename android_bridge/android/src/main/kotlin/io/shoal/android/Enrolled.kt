package io.shoal.android

import io.shoal.android.FleetState.Blocked
import java.io.File
import java.security.MessageDigest
import java.util.Locale
import java.util.Properties

/** What a service gave this phone when it enrolled; all texts but the id and the broker's address are PEM. */
internal class Enrolled(
    val deviceId: String,
    val broker: String,
    val certificate: String,
    val authority: String,
    val trust: String,
    val tokenHash: String,
) {
    fun renewed(certificate: String) = Enrolled(deviceId, broker, certificate, authority, trust, tokenHash)

    fun write(): Map<String, String> = mapOf(
        "deviceId" to deviceId,
        "broker" to broker,
        "certificate" to certificate,
        "authority" to authority,
        "trust" to trust,
        "tokenHash" to tokenHash,
    )

    companion object {
        /** Null where something is missing. */
        fun read(kept: Properties): Enrolled? {
            val names = listOf("deviceId", "broker", "certificate", "authority", "trust", "tokenHash")
            val values = names.map { kept.getProperty(it) ?: return null }
            return Enrolled(values[0], values[1], values[2], values[3], values[4], values[5])
        }
    }
}

/** A token that the phone is to enrol with, and why the service refused it for good, if it did. */
internal class Asked(val token: String, val refusal: Blocked?)

/**
 * What a fleet's folder holds of an enrolment: `enrolled.properties`, and until then `token.properties`. Each is whole or as it was. A
 * token is forgotten once it has served, and what came after the phone has left is not kept.
 */
internal class EnrolmentFolder(private val folder: File) {
    private val enrolledFile = File(folder, "enrolled.properties")
    private val tokenFile = File(folder, "token.properties")

    /** Null before the phone is enrolled. */
    val enrolled: Enrolled? get() = synchronized(Home.LOCK) { Enrolled.read(propertiesIn(enrolledFile)) }

    /** Null where no token waits. */
    val asked: Asked?
        get() = synchronized(Home.LOCK) {
            val kept = propertiesIn(tokenFile)
            val token = kept.getProperty("token") ?: return null
            val reason = Blocked.Reason.values().firstOrNull { it.name == kept.getProperty("reason") }
            Asked(token, reason?.let { Blocked(it, kept.getProperty("detail").orEmpty()) })
        }

    /** Keeps a token; nothing changes if it is the one that waits, or the one that the phone is enrolled with. */
    fun ask(token: String): Unit = synchronized(Home.LOCK) {
        if (asked?.token != token && enrolled?.tokenHash != hashOf(token)) write(tokenFile, mapOf("token" to token))
    }

    /** The service refuses this token for good. */
    fun refuse(token: String, refusal: Blocked): Unit = synchronized(Home.LOCK) {
        if (asked?.token == token) write(tokenFile, mapOf("token" to token, "reason" to refusal.reason.name, "detail" to refusal.detail))
    }

    /** The phone is enrolled with this token; false where that is no longer wanted. */
    fun take(token: String, given: Enrolled): Boolean = synchronized(Home.LOCK) {
        if (asked?.token != token) return false
        write(enrolledFile, given.write())
        tokenFile.delete()
        true
    }

    /** The phone has another certificate. */
    fun renew(given: Enrolled): Unit = synchronized(Home.LOCK) {
        if (enrolledFile.exists()) write(enrolledFile, given.write())
    }

    private fun write(file: File, values: Map<String, String>) = writeProperties(file, Properties().apply { putAll(values) })

    companion object {
        fun hashOf(token: String): String =
            MessageDigest.getInstance("SHA-256").digest(token.toByteArray()).joinToString("") { "%02x".format(Locale.ROOT, it) }
    }
}
