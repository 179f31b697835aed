package io.shoal.android

import io.shoal.core.ConfigException
import io.shoal.core.wire.Policy
import java.time.Duration

/** App's rules for plans: a lambda in Kotlin and in Java. */
public fun interface PolicyConfiguration {
    /** Set what plans may ask. */
    @Throws(ConfigException::class)
    public fun PolicyBuilder.configure()
}

/**
 * Rules for plans (`wire/SPEC.md`, "Policy"). Without a rule there is no restriction, except 1000
 * epochs in a plan. Functions throw a [ConfigException] for a value out of range, and are otherwise
 * like those of [FleetBuilder].
 */
@SettingsScope
public class PolicyBuilder internal constructor() {
    private var policy = Policy()

    /** Set the verbs that a plan may have, such as `train`. */
    @Throws(ConfigException::class)
    public fun verbs(vararg names: String): PolicyBuilder = with { copy(verbs = names.toList()) }

    /** Set the graphs that verbs may run. */
    @Throws(ConfigException::class)
    public fun graphs(vararg names: String): PolicyBuilder = with { copy(graphs = names.toList()) }

    /** Set the names of bundles that may be loaded. */
    @Throws(ConfigException::class)
    public fun bundles(vararg names: String): PolicyBuilder = with { copy(bundles = names.toList()) }

    /** Set the maximum number of epochs in a plan, over all its verbs. */
    @Throws(ConfigException::class)
    public fun maxEpochs(epochs: Double): PolicyBuilder = with { copy(maxEpochs = epochs) }

    /** Set the maximum duration of the work on a plan; it is ended then. */
    @Throws(ConfigException::class)
    public fun maxDuration(duration: Duration): PolicyBuilder = with { copy(maxSeconds = duration.toMillis() / 1000.0) }

    /** Set the maximum of bytes sent and received in 24 hours. */
    @Throws(ConfigException::class)
    public fun maxBytesPerDay(bytes: Long): PolicyBuilder = with { copy(maxBytesADay = bytes) }

    /**
     * Set the maximum length of the change that training may report: a plan that reports one must
     * end with a `protect` that clips to no more.
     */
    @Throws(ConfigException::class)
    public fun maxClipNorm(norm: Double): PolicyBuilder = with { copy(maxClipNorm = norm) }

    /**
     * Set the minimum noise of that `protect`: its standard deviation divided by its clipping norm.
     */
    @Throws(ConfigException::class)
    public fun minNoiseMultiplier(multiplier: Double): PolicyBuilder = with { copy(minNoiseMultiplier = multiplier) }

    /** Set the minimum number of windows behind each report. */
    @Throws(ConfigException::class)
    public fun minWindows(windows: Long): PolicyBuilder = with { copy(minWindows = windows) }

    /** Permit check-ins to report the number of training windows per class. */
    @Throws(ConfigException::class)
    public fun reportClassCounts(): PolicyBuilder = with { copy(tellClasses = true) }

    /**
     * Set graphs that verbs may run, but whose outputs no verb may report. With `choose` among
     * them, the phone's choice of a personal model stays private.
     */
    @Throws(ConfigException::class)
    public fun unreported(vararg names: String): PolicyBuilder = with { copy(unreported = names.toList()) }

    /** Forbid the texts of errors to leave the phone; the service gets the reason of a decline alone. */
    @Throws(ConfigException::class)
    public fun withholdErrors(): PolicyBuilder = with { copy(reportErrors = false) }

    /**
     * Permit reports of data in secret sums over at least so many devices alone, which needs
     * [FleetBuilder.helpers]. Check-ins then do not count windows, and no text of an error leaves the
     * phone.
     */
    @Throws(ConfigException::class)
    public fun minSum(devices: Long): PolicyBuilder = with { copy(minSum = devices) }

    internal fun build(): Policy = policy

    /**
     * Change the policy.
     *
     * @throws ConfigException a value is out of range
     */
    private fun with(change: Policy.() -> Policy): PolicyBuilder = apply { policy = policy.change() }
}
