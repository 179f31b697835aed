package io.shoal.android

import io.shoal.core.ConfigException
import io.shoal.core.wire.Policy

/** An app's rules over plans: a lambda in Kotlin and in Java. */
public fun interface PolicyConfiguration {
    /** Says what plans may ask. */
    @Throws(ConfigException::class)
    public fun PolicyBuilder.configure()
}

/** What plans may ask of a phone (`wire/SPEC.md`, "Policy"). What is not said is not restricted, but for 1000 epochs in a plan. */
@SettingsScope
public class PolicyBuilder internal constructor() {
    private var policy = Policy()

    /** The verbs that a plan may have, such as `train`. */
    @Throws(ConfigException::class)
    public fun verbs(vararg names: String): PolicyBuilder = with { copy(verbs = names.toList()) }

    /** The graphs that verbs may run. */
    @Throws(ConfigException::class)
    public fun graphs(vararg names: String): PolicyBuilder = with { copy(graphs = names.toList()) }

    /** The names of bundles that may be loaded. */
    @Throws(ConfigException::class)
    public fun bundles(vararg names: String): PolicyBuilder = with { copy(bundles = names.toList()) }

    /** Epochs in a plan, all its verbs together. */
    @Throws(ConfigException::class)
    public fun maxEpochs(epochs: Double): PolicyBuilder = with { copy(maxEpochs = epochs) }

    /** Seconds for which a plan may work; it is ended after them. */
    @Throws(ConfigException::class)
    public fun maxSeconds(seconds: Double): PolicyBuilder = with { copy(maxSeconds = seconds) }

    /** Bytes that may come and go in 24 hours. */
    @Throws(ConfigException::class)
    public fun maxBytesADay(bytes: Long): PolicyBuilder = with { copy(maxBytesADay = bytes) }

    /** The longest change that training may report: a plan that reports one has to end with `protect` that clips to no more. */
    @Throws(ConfigException::class)
    public fun maxClipNorm(norm: Double): PolicyBuilder = with { copy(maxClipNorm = norm) }

    /** The least noise of that `protect`, its standard deviation divided by its clipping norm. */
    @Throws(ConfigException::class)
    public fun minNoiseMultiplier(multiplier: Double): PolicyBuilder = with { copy(minNoiseMultiplier = multiplier) }

    /** Windows that have to be behind all that is reported. */
    @Throws(ConfigException::class)
    public fun minWindows(windows: Long): PolicyBuilder = with { copy(minWindows = windows) }

    /** A check-in may say how many training windows there are of each class. */
    @Throws(ConfigException::class)
    public fun tellClasses(): PolicyBuilder = with { copy(tellClasses = true) }

    /** Graphs that verbs may run, but of which no verb reports anything: `choose` keeps to itself what the phone keeps. */
    @Throws(ConfigException::class)
    public fun unreported(vararg names: String): PolicyBuilder = with { copy(unreported = names.toList()) }

    internal fun build(): Policy = policy

    /** @throws ConfigException a value that is out of range */
    private fun with(change: Policy.() -> Policy): PolicyBuilder = apply { policy = policy.change() }
}
