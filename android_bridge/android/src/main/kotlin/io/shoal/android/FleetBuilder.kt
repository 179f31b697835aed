package io.shoal.android

import io.shoal.core.ConfigException
import io.shoal.core.Enrolment
import io.shoal.core.EnrolmentToken
import io.shoal.core.secret.SecretPolicy
import io.shoal.core.wire.Policy
import java.time.Duration
import kotlin.reflect.KClass

/** App's settings of a fleet: a lambda in Kotlin and in Java. */
public fun interface FleetConfiguration {
    /** Set how the phone takes part. */
    @Throws(ConfigException::class)
    public fun FleetBuilder.configure()
}

/**
 * Mark of scopes: inside the rules of a policy, settings of the fleet are not visible, where they
 * would look like rules.
 */
@DslMarker
@Retention(AnnotationRetention.BINARY)
internal annotation class SettingsScope

/**
 * Settings of a phone in a fleet. [windows] is required, and either [enrol], or [broker] and
 * [trust]. All others have defaults. Functions read no file, and are for the thread that calls
 * [Shoal.fleet]. [enrol] and [policy] throw a [ConfigException] at once, and [Shoal.fleet] throws it
 * for any other setting that is missing or out of range; nothing is stored then. A missing asset, a
 * class without such a constructor and a wrong certificate show later, as [FleetState.Blocked] with
 * the reason `SETTINGS`. The settings outlive the process.
 */
@SettingsScope
public class FleetBuilder internal constructor(private val fleet: String) {
    private var broker: String? = null
    private var trusted: String? = null
    private var authority: String? = null
    private var windows: Class<out WindowSource>? = null
    private var deviceId: String? = null
    private var interval = Duration.ofHours(6)
    private var requireCharging = true
    private var requireUnmetered = true
    private var requireIdle = false
    private var foreground = true
    private var idleTimeout = Duration.ofMinutes(2)
    private var maxDuration = Duration.ofHours(1)
    private var minFreeBytes = 200L * 1024 * 1024
    private var insecure = false
    private var policy: Policy? = null
    private var service: String? = null
    private var packaged: PackagedAssets? = null
    private var attestation: Class<out Attestation>? = null
    private var login: BrokerLogin? = null
    private var helpers: String? = null

    /**
     * Token of [enrol]. It is a secret: it is stored apart from the settings, and deleted once it
     * was used.
     */
    internal var token: String? = null
        private set

    /**
     * Let the phone enrol at [service] (`https://HOST[:PORT]`, the port of `shoal serve
     * --enrol-port`) with a [token] of its own (`shoal enrol token`), once there is consent and a
     * network. The service tells the broker's address. Without [trust] it also tells the root keys;
     * with [trust], it must know one of those.
     *
     * @param token null before the app has one, and once the phone is enrolled. The library stores
     *   it: a later start of the app need not set it again
     * @throws ConfigException it is no such address, or not a token
     */
    @JvmOverloads
    @Throws(ConfigException::class)
    public fun enrol(service: String, token: String? = null): FleetBuilder = apply {
        Enrolment(service)
        this.token = token?.let { EnrolmentToken.parse(it).text }
        this.service = service
    }

    /**
     * Set a model among the app's assets, which answers until the phone has a model of the fleet.
     *
     * @param bundle name of a bundle (`device.shoal` of `shoal export`), signed with a key of
     *   [trust]
     * @param weights name of the model's tensors (`shoal models export --to NAME.safetensors`);
     *   null for the bundle's initial values
     */
    @JvmOverloads
    public fun model(bundle: String, weights: String? = null): FleetBuilder = apply { packaged = PackagedAssets(bundle, weights) }

    /**
     * Set the broker: `mqtts://HOST[:PORT]`. [authorityPem] is the authority of its certificate;
     * null for those that Android trusts.
     */
    @JvmOverloads
    public fun broker(address: String, authorityPem: String? = null): FleetBuilder = apply {
        broker = address
        authority = authorityPem
    }

    /**
     * Set the user and the password at the broker, as they are. In the address they would be
     * `USER:PASSWORD@`, with %NN for each sign such as # or /.
     */
    @JvmOverloads
    public fun login(user: String, password: String? = null): FleetBuilder = apply { login = BrokerLogin(user, password) }

    /**
     * Set the root keys, one PEM block after the other (`trust.pem` of `shoal export`). One of them
     * must have signed a bundle, or vouched for the signer of a plan.
     */
    public fun trust(pem: String): FleetBuilder = apply { trusted = pem }

    /**
     * Set the helpers of secret sums: the `helper.pub` of each, one after the other. The phone then
     * carries out plans that ask for a secret sum of these helpers, and signs its answers with the key
     * of its certificate ([enrol], or [Fleet.installCertificate]). [PolicyBuilder.minSum] needs them.
     */
    public fun helpers(text: String): FleetBuilder = apply { helpers = text }

    /**
     * Set the class that loads the phone's examples. It needs a public constructor without
     * parameters.
     */
    public fun windows(source: Class<out WindowSource>): FleetBuilder = apply { windows = source }

    /** Set the class that loads the phone's examples, named in Kotlin. */
    @JvmSynthetic
    public fun windows(source: KClass<out WindowSource>): FleetBuilder = windows(source.java)

    /**
     * Set the class that attests this app and phone when the phone enrols, for a service that
     * requires it.
     */
    public fun attestation(provider: Class<out Attestation>): FleetBuilder = apply { attestation = provider }

    /**
     * Set what plans may ask of this phone.
     *
     * @throws ConfigException a rule is out of range
     */
    @Throws(ConfigException::class)
    public fun policy(rules: PolicyConfiguration): FleetBuilder =
        apply { policy = PolicyBuilder().apply { with(rules) { configure() } }.build() }

    /**
     * Set the phone's id in the fleet, 1 to 64 characters of `A-Z a-z 0-9 . _ -`. The default is a
     * random id, which stays the same.
     */
    public fun deviceId(id: String): FleetBuilder = apply { deviceId = id }

    /** Set the interval of jobs (an hour to two weeks), which run while the constraints hold. Android may delay them. */
    public fun interval(duration: Duration): FleetBuilder = apply { interval = duration }

    /**
     * Set when jobs run: only while charging, on a network that is not metered, while nobody uses
     * the phone.
     */
    @JvmOverloads
    public fun constraints(charging: Boolean = true, unmetered: Boolean = true, idle: Boolean = false): FleetBuilder = apply {
        requireCharging = charging
        requireUnmetered = unmetered
        requireIdle = idle
    }

    /**
     * Set if a job asks to run as a foreground service, with a notification, so that it may take
     * longer than eight minutes. The default is true, and takes effect if the app has
     * `shoal-android-foreground`.
     */
    public fun foreground(wanted: Boolean): FleetBuilder = apply { foreground = wanted }

    /** Set the time without a message after which a job ends: at least a minute. */
    public fun idleTimeout(duration: Duration): FleetBuilder = apply { idleTimeout = duration }

    /** Set the time after which a job begins no more work: at least [idleTimeout]. */
    public fun maxDuration(duration: Duration): FleetBuilder = apply { maxDuration = duration }

    /** Set the free storage (bytes) below which nothing is fetched or trained. */
    public fun minFreeBytes(bytes: Long): FleetBuilder = apply { minFreeBytes = bytes }

    /**
     * Permit a fleet without [trust], and a broker without TLS. For tests: whoever can write to the
     * broker then rules the phone.
     */
    public fun allowInsecure(): FleetBuilder = apply { insecure = true }

    private fun address(): String {
        if (service == null) return broker ?: throw ConfigException("fleet $fleet: set enrol, or broker and trust")
        if (broker != null) throw ConfigException("fleet $fleet: set either enrol or broker; with enrol, the service tells the broker's address")
        return ""
    }

    /**
     * Return the settings.
     *
     * @throws ConfigException a setting is missing, or cannot be used
     */
    internal fun build(): ShoalSettings = ShoalSettings(
        address(),
        fleet,
        windows ?: throw ConfigException("fleet $fleet: set windows, the class that loads the phone's examples"),
        deviceId,
        trusted,
        authority,
        interval,
        requireCharging,
        requireUnmetered,
        requireIdle,
        foreground,
        idleTimeout,
        maxDuration,
        minFreeBytes,
        insecure,
        policy,
        service,
        packaged,
        attestation,
        login,
        helpers,
    ).also {
        it.trusted
        SecretPolicy.of(it.helpers, it.policy)
    }
}
