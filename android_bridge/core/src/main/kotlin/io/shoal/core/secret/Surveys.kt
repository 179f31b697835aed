package io.shoal.core.secret

import io.shoal.core.MalformedException
import io.shoal.core.PolicyBrokenException
import io.shoal.core.Storage
import io.shoal.core.Tensors
import io.shoal.core.wire.Fields
import io.shoal.core.wire.Json
import io.shoal.core.wire.JsonObject
import io.shoal.core.wire.JsonString
import io.shoal.core.wire.Names
import io.shoal.core.wire.Plane
import io.shoal.core.wire.SURVEY_BINS
import io.shoal.core.wire.SURVEY_BITS
import io.shoal.core.wire.SURVEY_CLIP
import io.shoal.core.wire.SURVEY_MOST
import io.shoal.core.wire.SURVEY_REACH
import io.shoal.core.wire.SURVEY_WIDTH
import io.shoal.core.wire.SumQuestion
import io.shoal.core.wire.SurveyScale
import io.shoal.core.wire.SurveySum
import io.shoal.core.wire.SurveyVerb
import io.shoal.core.wire.compareUtf8
import io.shoal.core.wire.digest
import io.shoal.core.wire.fieldsOf
import io.shoal.core.wire.hexOf
import io.shoal.core.wire.jsonText
import io.shoal.core.wire.parseJson
import io.shoal.core.wire.surveyFields
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.security.SecureRandom
import kotlin.math.floor
import kotlin.math.sqrt

/** Graph whose measurements are a survey. */
internal const val SURVEY = "survey"
private val PREFIX = Names.response(SURVEY) + "."
private const val GRADIENT = "gradient"

/**
 * Survey of a device (`edge_client.core.survey`): [means] and [variances] of the inputs of BatchNorm
 * layers, and the [sketch] of the gradient.
 */
internal class DeviceSurvey(val means: DoubleArray, val variances: DoubleArray, val sketch: DoubleArray) {
    /**
     * Return the coordinates of the device.
     *
     * @throws MalformedException the scale is that of another model
     */
    fun coordinates(scale: SurveyScale): DoubleArray {
        if (scale.mean.size != means.size) throw MalformedException("scale: ${scale.mean.size} means of inputs, and the model has ${means.size}")
        val labels = DoubleArray(sketch.size) { sketch[it] - scale.origin[it] }
        val views = ArrayList<DoubleArray>()
        if (means.isNotEmpty()) views += projected(DoubleArray(means.size) { (means[it] - scale.mean[it]) / scale.deviation[it] }, "inputs")
        views += labels
        return views.flatMapIndexed { number, view -> view.map { (it / scale.spreads[number]).coerceIn(-SURVEY_CLIP, SURVEY_CLIP) } }.toDoubleArray()
    }

    /**
     * Return the device's numbers in an exchange, by part.
     *
     * @throws MalformedException the device is in another node, or the scale is that of another model
     */
    fun numbers(verb: SurveySum): Map<String, FloatArray> = exact(verb).mapValues { (_, values) -> FloatArray(values.size) { values[it].toFloat() } }

    private fun exact(verb: SurveySum): Map<String, DoubleArray> {
        val scale = verb.scale
        if (scale == null) {
            val squares = DoubleArray(means.size) { means[it] * means[it] }
            val inputs = if (means.isEmpty()) emptyMap() else mapOf("means" to means, "squares" to squares, "variances" to variances)
            return inputs + mapOf("sketch" to sketch, "length" to doubleArrayOf(sketch.sumOf { it * it }))
        }
        val position = coordinates(scale)
        val node = nodeOf(position, verb.planes)
        if (node != verb.node) throw MalformedException("survey-sum: the device is in node '$node', asked for '${verb.node}'")
        if (verb.kind == "moments") {
            val products = position.indices.flatMap { i -> (i until position.size).map { position[i] * position[it] } }
            return mapOf("coordinates" to position, "products" to products.toDoubleArray())
        }
        val bins = DoubleArray(verb.axes.size * SURVEY_BINS)
        verb.axes.forEachIndexed { row, axis -> bins[row * SURVEY_BINS + binOf(along(axis.axis, position) - axis.mean, axis.deviation)] = 1.0 }
        return mapOf("bins" to bins)
    }

    internal companion object {
        /**
         * Return the survey in the responses of a device, in the order of the layers' names.
         *
         * @throws MalformedException the gradient is missing
         */
        fun of(responses: Tensors): DeviceSurvey {
            val survey = responses.filterKeys { it.startsWith(PREFIX) }.mapKeys { it.key.removePrefix(PREFIX) }.toSortedMap(::compareUtf8)
            fun values(prefix: String) = survey.filterKeys { it.startsWith(prefix) }.values
                .flatMap { each -> each.toFloatArray().map { if (it.isFinite()) it.toDouble() else 0.0 } }.toDoubleArray()
            if (GRADIENT !in survey) throw MalformedException("survey: $PREFIX$GRADIENT is missing")
            val (means, variances, gradient) = Triple(values("mean."), values("variance."), values(GRADIENT))
            if (means.size != variances.size) throw MalformedException("survey: ${means.size} means and ${variances.size} variances")
            val length = maxOf(sqrt(gradient.sumOf { it * it }), 1e-12)
            return DeviceSurvey(means, variances, projected(DoubleArray(gradient.size) { gradient[it] / length }, "labels"))
        }
    }
}

/**
 * Return values as at most [SURVEY_WIDTH] numbers of about the same length. The sign in row i and
 * column j is bit j of integer i of the mask of 32 zeros for the view.
 */
internal fun projected(values: DoubleArray, view: String): DoubleArray {
    if (values.size <= SURVEY_WIDTH && view != "labels") return values
    val words = ByteBuffer.wrap(FixedPoint(SURVEY_BITS, 1).mask(ByteArray(SEED_BYTES), "signs $view", values.size)).order(ByteOrder.LITTLE_ENDIAN)
    val sums = DoubleArray(SURVEY_WIDTH)
    for (value in values) {
        val word = words.getInt()
        for (j in sums.indices) if (word ushr j and 1 == 1) sums[j] += value else sums[j] -= value
    }
    return DoubleArray(SURVEY_WIDTH) { sums[it] / sqrt(SURVEY_WIDTH.toDouble()) }
}

/** Return the node that planes lead a device at this position to. */
internal fun nodeOf(position: DoubleArray, planes: List<Plane>): String {
    val byNode = planes.associateBy { it.node }
    var node = ""
    while (true) {
        val plane = byNode[node] ?: return node
        node += if (along(plane.axis, position) > plane.threshold) "1" else "0"
    }
}

private fun along(axis: List<Double>, position: DoubleArray): Double = position.indices.sumOf { axis[it] * position[it] }

private fun binOf(distance: Double, deviation: Double): Int =
    floor((distance / deviation + SURVEY_REACH) * (SURVEY_BINS / (2 * SURVEY_REACH))).coerceIn(0.0, SURVEY_BINS - 1.0).toInt()

/**
 * Check that a question is the one about an exchange, for any number of devices.
 *
 * @throws MalformedException it has other parts, or integers that are rounded in another way
 */
internal fun checkSurvey(question: SumQuestion, verb: SurveySum, numbers: Map<String, FloatArray>) {
    if (question.bits != SURVEY_BITS || question.most != SURVEY_MOST || question.noise != null) {
        throw MalformedException(
            "question: a survey has bits $SURVEY_BITS, most $SURVEY_MOST and no noise, got ${question.bits}, ${question.most} and ${question.noise}",
        )
    }
    val numInputs = verb.scale?.mean?.size ?: numbers["means"]?.size ?: 0
    if (question.parts != verb.parts(numInputs)) throw MalformedException("question: its parts are not those of the exchange ${verb.kind}")
}

/**
 * Return the source of the random bytes that round the numbers of an exchange: the same ones whenever
 * it is asked for. Sums of the same numbers that are rounded anew each time would tell them more
 * exactly. [seed] never leaves the device.
 */
internal fun roundingOf(seed: ByteArray, bundle: String, verb: SurveySum): (Int) -> ByteArray {
    val name = digest((bundle + jsonText(mapOf("type" to verb.type) + surveyFields(verb))).toByteArray())
    var calls = 0
    return { count -> FixedPoint(SURVEY_BITS, 1).mask(seed, "rounding $name ${calls++}", (count + 3) / 4).copyOf(count) }
}

/**
 * Facts that bind a device in surveys, by bundle: it answers each exchange of a node by one scale and
 * one split of each node (`edge_client.storage.surveys`). A device that told its side of one split in
 * two ways would tell more of itself than its group.
 */
internal class SurveyStore(private val storage: Storage, private val draw: (Int) -> ByteArray = { ByteArray(it).also(SecureRandom()::nextBytes) }) {
    /**
     * Bind the device to the facts of a verb, and return the seed of its rounding.
     *
     * @throws PolicyBrokenException the device is bound to other facts, or what is stored is damaged
     * @throws java.io.IOException the storage cannot be read or written; nothing may be told
     */
    fun bind(bundle: String, verb: SurveyVerb): ByteArray {
        val (seed, bundles) = load()
        val before = bundles[bundle].orEmpty()
        val facts = bindingsOf(verb)
        for ((name, fact) in facts) {
            if (before.getOrDefault(name, fact) != fact) {
                throw PolicyBrokenException("survey: ${name.trim()} was another one before, and a device tells its group by one only")
            }
        }
        if ((before + facts) != before) {
            storage.saveSurveys(jsonText(mapOf("rounding" to hexOf(seed), "bundles" to bundles + (bundle to before + facts))).toByteArray())
        }
        return seed
    }

    private fun load(): Pair<ByteArray, Map<String, Map<String, String>>> = try {
        val stored = storage.surveys()?.let { Fields(parseJson(it), "surveys") }
        if (stored == null) {
            Pair(draw(SEED_BYTES), emptyMap())
        } else {
            val seed = stored.string("rounding").chunked(2).map { it.toInt(16).toByte() }.toByteArray()
            Pair(seed, stored.map("bundles") { facts, path -> (facts as? JsonObject)?.fields?.mapValues { textOf(it.value, path) } ?: damaged(path) })
        }
    } catch (error: MalformedException) {
        throw PolicyBrokenException(
            "the file of surveys is damaged (${error.message}), so this device no longer knows what it has told of its group. " +
                "Enrol it anew, with an empty state folder.",
        )
    }
}

private fun textOf(value: Json, path: String): String = (value as? JsonString)?.value ?: damaged(path)

private fun damaged(path: String): Nothing = throw MalformedException("$path: expected texts by name")

private fun bindingsOf(verb: SurveyVerb): Map<String, String> {
    val facts = LinkedHashMap<String, Any?>()
    verb.scale?.let { facts["scale"] = fieldsOf(it) }
    for (plane in verb.planes) facts["plane ${plane.node}"] = fieldsOf(plane)
    if (verb is SurveySum) facts["${verb.kind} ${verb.node}"] = surveyFields(verb)
    return facts.mapValues { (_, fact) -> digest(jsonText(fact).toByteArray()) }
}
