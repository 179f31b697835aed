package io.shoal.android

import io.shoal.core.BundleException
import io.shoal.core.ConfigException
import io.shoal.core.wire.Policy
import io.shoal.core.wire.PublicKey
import java.util.Properties

/**
 * How a phone takes part. What an app enrols with is kept, and holds until it enrols again.
 *
 * @param broker `mqtts://HOST[:PORT]`; `mqtt://`, which anybody on the way can read and change, only if [insecure]
 * @param fleet the fleet's name, as given to `shoal serve --fleet`
 * @param windows the class that gives the phone's examples; it is made by its public constructor without parameters
 * @param deviceId 1 to 64 of `A-Z a-z 0-9 . _ -`; null: a random one, made at the first enrolment and kept
 * @param trustedKeyPem the root keys, one PEM block after the other (`trust.pem` of `shoal export`): one of them must have signed a bundle, or
 *   vouched for who signs plans; null, only if [insecure]: whoever can write to the broker rules this phone
 * @param brokerCaPem the authority of the broker's certificate; null: those that Android trusts
 * @param everyHours a job is due this often, while the constraints hold; Android may delay it
 * @param requireCharging only while charging
 * @param requireUnmetered only on a network that does not count bytes
 * @param requireIdle only while the phone is not in use
 * @param foreground ask to run as a foreground service, with a notification, so that a job may take longer than ten minutes
 * @param idleMinutes a job ends when nothing came for this long
 * @param maxMinutes a job begins no more work after this long; a job without foreground ends before ten minutes in any case
 * @param minFreeBytes below this much free storage nothing is fetched and nothing trained
 * @param insecure permits a missing [trustedKeyPem], and a [broker] without TLS; for tests
 * @param policy what plans may ask of this phone; null: what is usual
 */
public class ShoalSettings @JvmOverloads constructor(
    public val broker: String,
    public val fleet: String,
    public val windows: Class<out WindowSource>,
    public val deviceId: String? = null,
    public val trustedKeyPem: String? = null,
    public val brokerCaPem: String? = null,
    public val everyHours: Int = 6,
    public val requireCharging: Boolean = true,
    public val requireUnmetered: Boolean = true,
    public val requireIdle: Boolean = false,
    public val foreground: Boolean = true,
    public val idleMinutes: Int = 2,
    public val maxMinutes: Int = 60,
    public val minFreeBytes: Long = 200L * 1024 * 1024,
    public val insecure: Boolean = false,
    public val policy: Policy? = null,
) {
    init {
        if (trustedKeyPem == null && !insecure) throw ConfigException("trustedKeyPem is missing: only with 'insecure' is everybody believed")
        if (!broker.startsWith("mqtts://") && !insecure) {
            throw ConfigException("the broker's address does not begin with mqtts://: only with 'insecure' is TLS left out")
        }
        if (everyHours !in 1..24 * 14) throw ConfigException("everyHours is $everyHours, expected 1 to ${24 * 14}")
        if (idleMinutes < 1 || maxMinutes < idleMinutes) {
            throw ConfigException("idleMinutes is $idleMinutes and maxMinutes $maxMinutes, expected 1 <= idleMinutes <= maxMinutes")
        }
        for ((what, name) in listOf("fleet" to fleet, "deviceId" to (deviceId ?: "any"))) {
            if (!NAME.matches(name)) throw ConfigException("$what is '$name', expected 1 to 64 of A-Z a-z 0-9 . _ -")
        }
    }

    /** The root keys; none if [insecure]. */
    internal val trusted: List<PublicKey> by lazy {
        try {
            trustedKeyPem?.let(PublicKey.Companion::parse).orEmpty()
        } catch (error: BundleException) {
            throw ConfigException("trustedKeyPem: ${error.message}", error)
        }
    }

    internal fun write(): Properties = Properties().apply {
        setProperty("broker", broker)
        setProperty("fleet", fleet)
        setProperty("windows", windows.name)
        deviceId?.let { setProperty("deviceId", it) }
        trustedKeyPem?.let { setProperty("trustedKeyPem", it) }
        brokerCaPem?.let { setProperty("brokerCaPem", it) }
        setProperty("everyHours", everyHours.toString())
        setProperty("requireCharging", requireCharging.toString())
        setProperty("requireUnmetered", requireUnmetered.toString())
        setProperty("requireIdle", requireIdle.toString())
        setProperty("foreground", foreground.toString())
        setProperty("idleMinutes", idleMinutes.toString())
        setProperty("maxMinutes", maxMinutes.toString())
        setProperty("minFreeBytes", minFreeBytes.toString())
        setProperty("insecure", insecure.toString())
        policy?.let { setProperty("policy", it.toJson()) }
    }

    internal companion object {
        private val NAME = Regex("[A-Za-z0-9._-]{1,64}")

        /** @throws ConfigException a value is missing or wrong, or the app no longer has the class of its windows */
        fun read(kept: Properties): ShoalSettings {
            fun text(name: String) = kept.getProperty(name) ?: throw ConfigException("kept settings: no '$name'; enrol again")
            fun number(name: String) = text(name).toLongOrNull() ?: throw ConfigException("kept settings: $name is '${text(name)}'; enrol again")
            val windows = try {
                Class.forName(text("windows")).asSubclass(WindowSource::class.java)
            } catch (error: ClassNotFoundException) {
                throw ConfigException("this version of the app has no class ${text("windows")}, with which it enrolled; enrol again", error)
            }
            return ShoalSettings(
                text("broker"),
                text("fleet"),
                windows,
                kept.getProperty("deviceId"),
                kept.getProperty("trustedKeyPem"),
                kept.getProperty("brokerCaPem"),
                number("everyHours").toInt(),
                text("requireCharging").toBoolean(),
                text("requireUnmetered").toBoolean(),
                text("requireIdle").toBoolean(),
                text("foreground").toBoolean(),
                number("idleMinutes").toInt(),
                number("maxMinutes").toInt(),
                number("minFreeBytes"),
                text("insecure").toBoolean(),
                kept.getProperty("policy")?.let(Policy.Companion::parse),
            )
        }
    }
}
