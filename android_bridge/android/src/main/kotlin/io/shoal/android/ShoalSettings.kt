package io.shoal.android

import io.shoal.core.BundleException
import io.shoal.core.ConfigException
import io.shoal.core.wire.Policy
import io.shoal.core.wire.PublicKey
import java.util.Properties

/** The names of a bundle and of its model's weights among the app's assets. */
internal data class PackagedAssets(val bundle: String, val weights: String?)

/**
 * What [FleetBuilder] was told; it is kept, and holds until the app says something else. With a [service] it has no broker of its own, and
 * no keys if the app gives none: [with] adds what the service gave.
 */
internal data class ShoalSettings(
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
    val service: String? = null,
    val packaged: PackagedAssets? = null,
    val attestation: Class<out Attestation>? = null,
) {
    init {
        val enrols = service != null && broker.isEmpty()
        if (packaged != null && trustedKeyPem == null && !insecure) throw ConfigException("model needs trust: nobody else vouches for it")
        if (trustedKeyPem == null && service == null && !insecure) {
            throw ConfigException("trust is missing: only with 'insecure' is everybody believed")
        }
        if (!enrols && !broker.startsWith("mqtts://") && !insecure) {
            throw ConfigException("the broker's address does not begin with mqtts://: only with 'insecure' is TLS left out")
        }
        if (everyHours !in 1..24 * 14) throw ConfigException("everyHours is $everyHours, expected 1 to ${24 * 14}")
        if (idleMinutes < 1 || maxMinutes < idleMinutes) {
            throw ConfigException("minutes: idle is $idleMinutes and most $maxMinutes, expected 1 <= idle <= most")
        }
        checkName("fleet", fleet)
        deviceId?.let { checkName("deviceId", it) }
    }

    /** The root keys; none if [insecure]. */
    val trusted: List<PublicKey> by lazy {
        try {
            trustedKeyPem?.let(PublicKey.Companion::parse).orEmpty()
        } catch (error: BundleException) {
            throw ConfigException("trust: ${error.message}", error)
        }
    }

    /** @throws ConfigException the app's class cannot be made */
    fun source(): WindowSource = made(windows)

    /** @throws ConfigException the app's class cannot be made */
    fun attestedBy(): Attestation? = attestation?.let(::made)

    private fun <T> made(type: Class<out T>): T = try {
        type.getDeclaredConstructor().newInstance()
    } catch (error: ReflectiveOperationException) {
        throw ConfigException("${type.name}: it cannot be made by a public constructor without parameters: $error", error)
    }

    /** These, with what the phone was given when it enrolled. */
    fun with(given: Enrolled): ShoalSettings = copy(
        broker = given.broker,
        brokerCaPem = given.authority,
        deviceId = given.deviceId,
        trustedKeyPem = trustedKeyPem ?: given.trust,
    )

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
        service?.let { setProperty("service", it) }
        attestation?.let { setProperty("attestation", it.name) }
        packaged?.let { assets ->
            setProperty("modelBundle", assets.bundle)
            assets.weights?.let { setProperty("modelWeights", it) }
        }
    }

    companion object {
        /** @throws ConfigException a value is missing or wrong, or the app no longer has the class of its windows */
        fun read(kept: Properties): ShoalSettings {
            fun text(name: String) = kept.getProperty(name) ?: throw ConfigException("kept settings: no '$name'; call Shoal.fleet with settings")
            fun number(name: String) = text(name).toLongOrNull() ?: throw ConfigException("kept settings: $name is '${text(name)}'; call Shoal.fleet with settings")
            fun <T> named(name: String, type: Class<T>): Class<out T> = try {
                Class.forName(name).asSubclass(type)
            } catch (error: ClassNotFoundException) {
                throw ConfigException("this version of the app has no class $name, with which it enrolled; call Shoal.fleet with settings", error)
            }
            return ShoalSettings(
                text("broker"),
                text("fleet"),
                named(text("windows"), WindowSource::class.java),
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
                kept.getProperty("service"),
                kept.getProperty("modelBundle")?.let { PackagedAssets(it, kept.getProperty("modelWeights")) },
                kept.getProperty("attestation")?.let { named(it, Attestation::class.java) },
            )
        }
    }
}

private val NAME = Regex("[A-Za-z0-9._-]{1,64}")

/** @throws ConfigException a name that cannot be one; it is part of topics and of folders */
internal fun checkName(what: String, name: String) {
    if (!NAME.matches(name) || name.all { it == '.' }) throw ConfigException("$what is '$name', expected 1 to 64 of A-Z a-z 0-9 . _ -")
}
