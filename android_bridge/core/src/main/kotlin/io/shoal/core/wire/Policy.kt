package io.shoal.core.wire

import io.shoal.core.ConfigException
import io.shoal.core.InternalShoalApi
import io.shoal.core.Malformed

/**
 * What the owner of a device permits plans to ask of it (`wire/SPEC.md`, 'Policy'). What is null is not restricted.
 *
 * @param verbs the verbs that a plan may have, such as `train`
 * @param graphs the graphs that verbs may run
 * @param bundles the names of bundles that may be loaded
 * @param maxEpochs epochs in a plan, all its verbs together
 * @param maxSeconds seconds for which a plan may work; it is ended after them
 * @param maxBytesADay bytes that may come and go in 24 hours
 * @param maxClipNorm the longest change that training may report: a plan that reports one has to end with `protect` that clips to no more
 * @param minNoiseMultiplier the least noise of that `protect`, its standard deviation divided by its clipping norm
 * @param minWindows windows that have to be behind all that is reported
 * @param tellClasses whether a check-in may say how many training windows there are of each class
 * @param unreported graphs that verbs may run, but of which no verb reports anything
 * @throws ConfigException a number that is out of range
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
) {
    init {
        for ((field, names) in listOf("verbs" to verbs, "graphs" to graphs, "bundles" to bundles, "unreported" to unreported)) {
            names?.firstOrNull { !isName(it) }?.let { throw ConfigException("policy: $field has '${it.take(80)}', expected names") }
        }
        for ((field, number) in listOf("maxEpochs" to maxEpochs, "maxSeconds" to maxSeconds, "maxClipNorm" to maxClipNorm)) {
            if (number != null && !(number > 0 && number.isFinite())) throw ConfigException("policy: $field is $number, expected above 0")
        }
        if (minNoiseMultiplier != null && !(minNoiseMultiplier >= 0 && minNoiseMultiplier.isFinite())) {
            throw ConfigException("policy: minNoiseMultiplier is $minNoiseMultiplier, expected at least 0")
        }
        if (maxBytesADay != null && maxBytesADay !in Fields.POSITIVE || minWindows !in Fields.POSITIVE) {
            throw ConfigException("policy: maxBytesADay $maxBytesADay and minWindows $minWindows, expected 1 to ${Fields.POSITIVE.last}")
        }
    }

    /** As JSON text, as a check-in carries it. */
    public fun toJson(): String = jsonText(fieldsOf(this))

    public companion object {
        internal const val MAX_EPOCHS = 1000.0

        /**
         * Reads JSON text: the fields of the table in `wire/SPEC.md`.
         *
         * @throws ConfigException not a policy
         */
        public fun parse(json: String): Policy = try {
            policyOf(Fields(parseJson(json.toByteArray()), "policy"))
        } catch (error: Malformed) {
            throw ConfigException("policy: ${error.message}", error)
        }
    }
}

/** Fields that are as they would be without being said are left out. */
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
    )
    return fields.filterValues { it != null }
}

/** @throws Malformed not a policy */
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
)
