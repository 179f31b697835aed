package io.shoal.android

import io.shoal.core.BundleException
import io.shoal.core.ConfigException
import io.shoal.core.wire.Policy
import io.shoal.core.wire.PublicKey
import java.util.Properties

/** What [FleetBuilder] was told; it is kept, and holds until the app says something else. */
internal class ShoalSettings(
    val broker: String,
    val fleet: String,
    val windows: Class<out WindowSource>,
    val deviceId: String? = null,
    val trustedKeyPem: String? = null,
    val brokerCaPem: String? = null,
    val everyHours: Int = 6,
    val requireCharging: Boolean = true,
    val requireUnmetered: Boolean = true,
    val requireIdle: Boolean = false,
    val foreground: Boolean = true,
    val idleMinutes: Int = 2,
    val maxMinutes: Int = 60,
    val minFreeBytes: Long = 200L * 1024 * 1024,
    val insecure: Boolean = false,
    val policy: Policy? = null,
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
        checkName("fleet", fleet)
        deviceId?.let { checkName("deviceId", it) }
    }

    /** The root keys; none if [insecure]. */
    val trusted: List<PublicKey> by lazy {
        try {
            trustedKeyPem?.let(PublicKey.Companion::parse).orEmpty()
        } catch (error: BundleException) {
            throw ConfigException("trustedKeyPem: ${error.message}", error)
        }
    }

    fun write(): Properties = Properties().apply {
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

    companion object {
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

private val NAME = Regex("[A-Za-z0-9._-]{1,64}")

/** @throws ConfigException a name that cannot be one; it is part of topics and of folders */
internal fun checkName(what: String, name: String) {
    if (!NAME.matches(name) || name.all { it == '.' }) throw ConfigException("$what is '$name', expected 1 to 64 of A-Z a-z 0-9 . _ -")
}
