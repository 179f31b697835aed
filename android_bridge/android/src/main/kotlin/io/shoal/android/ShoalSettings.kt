package io.shoal.android

import io.shoal.core.BundleException
import io.shoal.core.ConfigException
import io.shoal.core.wire.Policy
import io.shoal.core.wire.PublicKey
import java.time.DateTimeException
import java.time.Duration
import java.util.Properties

/** Names of a bundle and of its model's weights among the app's assets. */
internal data class PackagedAssets(val bundle: String, val weights: String?)

/** User and password at the broker. A text of the settings does not show them. */
internal data class BrokerLogin(val user: String, val password: String?) {
    override fun toString(): String = "***"
}

/**
 * Settings from [FleetBuilder]. They are stored, and hold until the app sets others. With a
 * [service] they have no broker, and no keys if the app sets none: [with] adds the service's.
 */
internal data class ShoalSettings(
    val broker: String,
    val fleet: String,
    val windows: Class<out WindowSource>,
    val deviceId: String? = null,
    val trustedKeyPem: String? = null,
    val brokerCaPem: String? = null,
    val interval: Duration = Duration.ofHours(6),
    val requireCharging: Boolean = true,
    val requireUnmetered: Boolean = true,
    val requireIdle: Boolean = false,
    val foreground: Boolean = true,
    val idleTimeout: Duration = Duration.ofMinutes(2),
    val maxDuration: Duration = Duration.ofHours(1),
    val minFreeBytes: Long = 200L * 1024 * 1024,
    val insecure: Boolean = false,
    val policy: Policy? = null,
    val service: String? = null,
    val packaged: PackagedAssets? = null,
    val attestation: Class<out Attestation>? = null,
    val login: BrokerLogin? = null,
    val helpers: String? = null,
) {
    init {
        val enrols = service != null && broker.isEmpty()
        if (packaged != null && trustedKeyPem == null && !insecure) throw ConfigException("model: set trust, too; a root key must vouch for the model")
        if (trustedKeyPem == null && service == null && !insecure) {
            throw ConfigException("trust is missing; set it, or permit with 'allowInsecure' that everybody is believed")
        }
        if (!enrols && !broker.startsWith("mqtts://") && !insecure) {
            throw ConfigException("broker must begin with mqtts://, got ${broker.substringBefore("://", "")}://; 'allowInsecure' permits a broker without TLS")
        }
        if (interval !in Duration.ofHours(1)..Duration.ofDays(14)) throw ConfigException("interval must be between an hour and 14 days, got $interval")
        if (idleTimeout !in Duration.ofMinutes(1)..Duration.ofDays(1)) {
            throw ConfigException("idleTimeout must be between a minute and a day, got $idleTimeout")
        }
        if (maxDuration !in idleTimeout..Duration.ofDays(1)) {
            throw ConfigException("maxDuration must be between idleTimeout ($idleTimeout) and a day, got $maxDuration")
        }
        checkName("fleet", fleet)
        deviceId?.let { checkName("deviceId", it) }
    }

    /** Root keys; none if [insecure]. */
    val trusted: List<PublicKey> by lazy {
        try {
            trustedKeyPem?.let(PublicKey.Companion::parse).orEmpty()
        } catch (error: BundleException) {
            throw ConfigException("trust: ${error.message}", error)
        }
    }

    /**
     * Return the app's source of windows.
     *
     * @throws ConfigException the app's class cannot be created
     */
    fun source(): WindowSource = create(windows)

    /**
     * Return the app's provider of attestations, or null.
     *
     * @throws ConfigException the app's class cannot be created
     */
    fun attestationProvider(): Attestation? = attestation?.let(::create)

    private fun <T> create(type: Class<out T>): T = try {
        type.getDeclaredConstructor().newInstance()
    } catch (error: ReflectiveOperationException) {
        throw ConfigException("${type.name}: it needs a public constructor without parameters that works: $error", error)
    }

    /** Return the settings with the service's credentials of the phone. */
    fun with(credentials: PhoneCredentials): ShoalSettings = copy(
        broker = credentials.broker,
        brokerCaPem = credentials.authority,
        deviceId = credentials.deviceId,
        trustedKeyPem = trustedKeyPem ?: credentials.trust,
    )

    fun write(): Properties = Properties().apply {
        setProperty("broker", broker)
        setProperty("fleet", fleet)
        setProperty("windows", windows.name)
        deviceId?.let { setProperty("deviceId", it) }
        trustedKeyPem?.let { setProperty("trustedKeyPem", it) }
        brokerCaPem?.let { setProperty("brokerCaPem", it) }
        setProperty("interval", interval.toString())
        setProperty("requireCharging", requireCharging.toString())
        setProperty("requireUnmetered", requireUnmetered.toString())
        setProperty("requireIdle", requireIdle.toString())
        setProperty("foreground", foreground.toString())
        setProperty("idleTimeout", idleTimeout.toString())
        setProperty("maxDuration", maxDuration.toString())
        setProperty("minFreeBytes", minFreeBytes.toString())
        setProperty("insecure", insecure.toString())
        policy?.let { setProperty("policy", it.toJson()) }
        service?.let { setProperty("service", it) }
        attestation?.let { setProperty("attestation", it.name) }
        login?.let { setProperty("brokerUser", it.user) }
        login?.password?.let { setProperty("brokerPassword", it) }
        helpers?.let { setProperty("helpers", it) }
        packaged?.let { assets ->
            setProperty("modelBundle", assets.bundle)
            assets.weights?.let { setProperty("modelWeights", it) }
        }
    }

    companion object {
        /**
         * Return the stored settings.
         *
         * @throws ConfigException a value is missing or wrong, or the app lacks the class of its
         *   windows
         */
        fun read(stored: Properties): ShoalSettings {
            fun text(name: String) = stored.getProperty(name) ?: throw ConfigException("stored settings: no '$name'; call Shoal.fleet with settings")
            fun number(name: String) = text(name).toLongOrNull() ?: throw ConfigException("stored settings: $name must be a number, got '${text(name)}'; call Shoal.fleet with settings")
            fun duration(name: String) = try {
                Duration.parse(text(name))
            } catch (error: DateTimeException) {
                throw ConfigException("stored settings: $name must be a duration, got '${text(name)}'; call Shoal.fleet with settings", error)
            }
            fun <T> named(name: String, type: Class<T>): Class<out T> = try {
                Class.forName(name).asSubclass(type)
            } catch (error: ClassNotFoundException) {
                throw ConfigException("this version of the app lacks the class $name of its settings; call Shoal.fleet with settings", error)
            }
            return ShoalSettings(
                text("broker"),
                text("fleet"),
                named(text("windows"), WindowSource::class.java),
                stored.getProperty("deviceId"),
                stored.getProperty("trustedKeyPem"),
                stored.getProperty("brokerCaPem"),
                duration("interval"),
                text("requireCharging").toBoolean(),
                text("requireUnmetered").toBoolean(),
                text("requireIdle").toBoolean(),
                text("foreground").toBoolean(),
                duration("idleTimeout"),
                duration("maxDuration"),
                number("minFreeBytes"),
                text("insecure").toBoolean(),
                stored.getProperty("policy")?.let(Policy.Companion::parse),
                stored.getProperty("service"),
                stored.getProperty("modelBundle")?.let { PackagedAssets(it, stored.getProperty("modelWeights")) },
                stored.getProperty("attestation")?.let { named(it, Attestation::class.java) },
                stored.getProperty("brokerUser")?.let { BrokerLogin(it, stored.getProperty("brokerPassword")) },
                stored.getProperty("helpers"),
            )
        }
    }
}

private val NAME = Regex("[A-Za-z0-9._-]{1,64}")

/**
 * Check a name, which is part of topics and of folders.
 *
 * @throws ConfigException the name is invalid
 */
internal fun checkName(what: String, name: String) {
    if (!NAME.matches(name) || name.all { it == '.' }) throw ConfigException("$what must be 1 to 64 characters of A-Z a-z 0-9 . _ -, got '$name'")
}
