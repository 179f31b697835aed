package io.shoal.android

import io.shoal.core.ConfigException
import io.shoal.core.Enrolment
import io.shoal.core.EnrolmentToken
import io.shoal.core.wire.Policy
import kotlin.reflect.KClass

/** An app's settings of a fleet: a lambda in Kotlin and in Java. */
public fun interface FleetConfiguration {
    /** Says how the phone takes part. */
    @Throws(ConfigException::class)
    public fun FleetBuilder.configure()
}

/** Among the rules of a policy no setting of its fleet can be said: it would look like a rule. */
@DslMarker
@Retention(AnnotationRetention.BINARY)
internal annotation class SettingsScope

/**
 * How a phone takes part in a fleet. What is needed: [enrol], or [broker] and [trust], and [windows]; the rest is as usual if it is not said.
 */
@SettingsScope
public class FleetBuilder internal constructor(private val fleet: String) {
    private var broker: String? = null
    private var trusted: String? = null
    private var authority: String? = null
    private var windows: Class<out WindowSource>? = null
    private var deviceId: String? = null
    private var everyHours = 6
    private var requireCharging = true
    private var requireUnmetered = true
    private var requireIdle = false
    private var foreground = true
    private var idleMinutes = 2
    private var maxMinutes = 60
    private var minFreeBytes = 200L * 1024 * 1024
    private var insecure = false
    private var policy: Policy? = null
    private var service: String? = null
    private var packaged: PackagedAssets? = null
    private var attestation: Class<out Attestation>? = null

    /** What [enrol] was given. It is a secret: it is apart from the settings, and forgotten once it has served. */
    internal var token: String? = null
        private set

    /**
     * The phone enrols itself at [service] (`https://HOST[:PORT]`, what `shoal serve --enrol-port` opens) with a [token] of its own
     * (`shoal enrol token`), once there is consent and a network. The service says where the broker is. Without [trust] it also says the
     * root keys; with it, it must know one of those.
     *
     * @throws ConfigException not such an address, or not a token
     */
    @Throws(ConfigException::class)
    public fun enrol(service: String, token: String): FleetBuilder = apply {
        Enrolment(service)
        this.token = EnrolmentToken.parse(token).text
        this.service = service
    }

    /**
     * A model among the app's assets, which answers until the fleet has given this phone one: a [bundle] (`device.shoal` of `shoal
     * export`), signed with a key of [trust], and the model's [weights] (`shoal models export --to NAME.safetensors`), or the bundle's
     * initial values.
     */
    @JvmOverloads
    public fun model(bundle: String, weights: String? = null): FleetBuilder = apply { packaged = PackagedAssets(bundle, weights) }

    /** The broker: `mqtts://HOST[:PORT]`. [authorityPem] is the authority of its certificate; null: those that Android trusts. */
    @JvmOverloads
    public fun broker(address: String, authorityPem: String? = null): FleetBuilder = apply {
        broker = address
        authority = authorityPem
    }

    /**
     * The root keys, one PEM block after the other (`trust.pem` of `shoal export`): one of them must have signed a bundle, or vouched for who
     * signs plans.
     */
    public fun trust(pem: String): FleetBuilder = apply { trusted = pem }

    /** The class that gives the phone's examples; it is made by its public constructor without parameters. */
    public fun windows(source: Class<out WindowSource>): FleetBuilder = apply { windows = source }

    /** The same, as Kotlin names classes. */
    @JvmSynthetic
    public fun windows(source: KClass<out WindowSource>): FleetBuilder = windows(source.java)

    /** The class that attests this app and phone when the phone enrols, for a service that requires it. */
    public fun attestation(by: Class<out Attestation>): FleetBuilder = apply { attestation = by }

    /**
     * What plans may ask of this phone.
     *
     * @throws ConfigException a rule is out of range
     */
    @Throws(ConfigException::class)
    public fun policy(rules: PolicyConfiguration): FleetBuilder =
        apply { policy = PolicyBuilder().apply { with(rules) { configure() } }.build() }

    /** The phone's id in the fleet, 1 to 64 of `A-Z a-z 0-9 . _ -`; else a random one, made once and kept. */
    public fun deviceId(id: String): FleetBuilder = apply { deviceId = id }

    /** A job is due this often, while the constraints hold; Android may delay it. */
    public fun everyHours(hours: Int): FleetBuilder = apply { everyHours = hours }

    /** Jobs run only while charging, on a network that does not count bytes, while nobody uses the phone. */
    @JvmOverloads
    public fun constraints(charging: Boolean = true, unmetered: Boolean = true, idle: Boolean = false): FleetBuilder = apply {
        requireCharging = charging
        requireUnmetered = unmetered
        requireIdle = idle
    }

    /**
     * Whether a job asks to run as a foreground service, with a notification, so that it may take longer than eight minutes. It does where the
     * app has `shoal-android-foreground`, unless this says otherwise.
     */
    public fun foreground(wanted: Boolean): FleetBuilder = apply { foreground = wanted }

    /** A job ends when nothing came for [idle] minutes, and begins no more work after [most]. */
    public fun minutes(idle: Int, most: Int): FleetBuilder = apply {
        idleMinutes = idle
        maxMinutes = most
    }

    /** Below this much free storage nothing is fetched and nothing trained. */
    public fun minFreeBytes(bytes: Long): FleetBuilder = apply { minFreeBytes = bytes }

    /** Permits a fleet without [trust], and a broker without TLS. For tests: whoever can write to the broker then rules the phone. */
    public fun insecure(): FleetBuilder = apply { insecure = true }

    private fun address(): String {
        if (service == null) return broker ?: throw ConfigException("fleet $fleet: neither enrol nor broker")
        if (broker != null) throw ConfigException("fleet $fleet: enrol and broker: the service says where the broker is")
        return ""
    }

    /** @throws ConfigException a setting is missing, or cannot be used */
    internal fun build(): ShoalSettings = ShoalSettings(
        address(),
        fleet,
        windows ?: throw ConfigException("fleet $fleet: no windows: the class that gives the phone's examples"),
        deviceId,
        trusted,
        authority,
        everyHours,
        requireCharging,
        requireUnmetered,
        requireIdle,
        foreground,
        idleMinutes,
        maxMinutes,
        minFreeBytes,
        insecure,
        policy,
        service,
        packaged,
        attestation,
    ).also { it.trusted }
}
