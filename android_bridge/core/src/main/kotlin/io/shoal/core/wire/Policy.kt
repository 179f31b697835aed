package io.shoal.core.wire

import io.shoal.core.ConfigException
import io.shoal.core.InternalShoalApi
import io.shoal.core.MalformedException

/**
 * Policy of a device's owner (`wire/SPEC.md`, 'Policy'). Null means no restriction.
 *
 * @param verbs verbs that a plan may have, such as `train`
 * @param graphs graphs that verbs may run
 * @param bundles names of bundles that may be loaded
 * @param maxEpochs maximum number of epochs in a plan, over all its verbs
 * @param maxSeconds maximum duration of the work on a plan (seconds); it is ended then
 * @param maxBytesADay maximum of bytes sent and received in 24 hours
 * @param maxClipNorm maximum length of the change that training may report: a plan that reports one
 *   must end with a `protect` that clips to no more
 * @param minNoiseMultiplier minimum noise of that `protect`: its standard deviation divided by its
 *   clipping norm
 * @param minWindows minimum number of windows behind each report
 * @param tellClasses true if a check-in may tell the number of training windows per class
 * @param unreported graphs that verbs may run, but whose outputs no verb may report
 * @param reportErrors true if texts of errors may leave the device; otherwise only the reason of a
 *   decline does
 * @param minSum minimum number of devices of a secret sum; with it, data are reported in secret sums
 *   alone, and neither check-ins nor texts of errors tell anything of them
 * @throws ConfigException a number is out of range
 */
@InternalShoalApi
public data class Policy(
    val verbs: List<String>? = null,
    val graphs: List<String>? = null,
    val bundles: List<String>? = null,
    val maxEpochs: Double = MAX_EPOCHS,
    val maxSeconds: Double? = null,
    val maxBytesADay: Long? = null,
    val maxClipNorm: Double? = null,
    val minNoiseMultiplier: Double? = null,
    val minWindows: Long = 1,
    val tellClasses: Boolean = false,
    val unreported: List<String>? = null,
    val reportErrors: Boolean = true,
    val minSum: Long? = null,
) {
    /** True if texts of errors may leave the device; they may count windows. */
    internal val tellsErrors: Boolean get() = reportErrors && minSum == null

    init {
        for ((field, names) in listOf("verbs" to verbs, "graphs" to graphs, "bundles" to bundles, "unreported" to unreported)) {
            names?.firstOrNull { !isName(it) }?.let { throw ConfigException("policy: $field must be names of 1 to 64 characters of A-Z a-z 0-9 . _ -, got '${it.take(80)}'") }
        }
        for ((field, number) in listOf("maxEpochs" to maxEpochs, "maxSeconds" to maxSeconds, "maxClipNorm" to maxClipNorm)) {
            if (number != null && !(number > 0 && number.isFinite())) throw ConfigException("policy: $field must be above 0, got $number")
        }
        if (minNoiseMultiplier != null && !(minNoiseMultiplier >= 0 && minNoiseMultiplier.isFinite())) {
            throw ConfigException("policy: minNoiseMultiplier must be at least 0, got $minNoiseMultiplier")
        }
        for ((field, number) in listOf("maxBytesADay" to maxBytesADay, "minWindows" to minWindows, "minSum" to minSum)) {
            if (number != null && number !in Fields.POSITIVE) throw ConfigException("policy: $field must be between 1 and ${Fields.POSITIVE.last}, got $number")
        }
    }

    /** Return it as JSON text, as in a check-in. */
    public fun toJson(): String = jsonText(fieldsOf(this))

    public companion object {
        internal const val MAX_EPOCHS = 1000.0

        /**
         * Parse JSON text with the fields of the table in `wire/SPEC.md`.
         *
         * @throws ConfigException it is not a policy
         */
        public fun parse(json: String): Policy = try {
            policyOf(Fields(parseJson(json.toByteArray()), "policy"))
        } catch (error: MalformedException) {
            throw ConfigException("policy: ${error.message}", error)
        }
    }
}

/** Return the fields of a policy, without those that have their default. */
internal fun fieldsOf(policy: Policy): Map<String, Any?> {
    val fields = linkedMapOf<String, Any?>(
        "verbs" to policy.verbs,
        "graphs" to policy.graphs,
        "bundles" to policy.bundles,
        "max_epochs" to policy.maxEpochs.takeIf { it != Policy.MAX_EPOCHS },
        "max_seconds" to policy.maxSeconds,
        "max_bytes_a_day" to policy.maxBytesADay,
        "max_clip_norm" to policy.maxClipNorm,
        "min_noise_multiplier" to policy.minNoiseMultiplier,
        "min_windows" to policy.minWindows.takeIf { it != 1L },
        "tell_classes" to policy.tellClasses.takeIf { it },
        "unreported" to policy.unreported,
        "report_errors" to policy.reportErrors.takeIf { !it },
        "min_sum" to policy.minSum,
    )
    return fields.filterValues { it != null }
}

/**
 * Parse a policy.
 *
 * @throws MalformedException it is not a policy
 */
internal fun policyOf(f: Fields): Policy = Policy(
    verbs = f.namesOrNull("verbs"),
    graphs = f.namesOrNull("graphs"),
    bundles = f.namesOrNull("bundles"),
    maxEpochs = f.double("max_epochs", Policy.MAX_EPOCHS, "above 0") { it > 0 },
    maxSeconds = f.doubleOrNull("max_seconds", "above 0") { it > 0 },
    maxBytesADay = f.intOrNull("max_bytes_a_day", Fields.POSITIVE),
    maxClipNorm = f.doubleOrNull("max_clip_norm", "above 0") { it > 0 },
    minNoiseMultiplier = f.doubleOrNull("min_noise_multiplier", "at least 0") { it >= 0 },
    minWindows = f.positive("min_windows", 1),
    tellClasses = f.bool("tell_classes", false),
    unreported = f.namesOrNull("unreported"),
    reportErrors = f.bool("report_errors", true),
    minSum = f.intOrNull("min_sum", Fields.POSITIVE),
)
