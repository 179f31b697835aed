package io.shoal.core.wire

import io.shoal.core.MalformedException

/** Maximum number of coordinates of a view: the statistics of inputs, or the labels. */
internal const val SURVEY_WIDTH = 32

/** Number of bins of a density, over [SURVEY_REACH] deviations to either side of the mean. */
internal const val SURVEY_BINS = 32
internal const val SURVEY_REACH = 4.0

/** Largest absolute value of a coordinate. */
internal const val SURVEY_CLIP = 4.0

/** Bits of an integer of a survey, and the largest number of devices: those of every question about one. */
internal const val SURVEY_BITS = 32
internal const val SURVEY_MOST = 4_095L

/** Clip with which the number 1 is the integer 1, so that counts are exact. */
private val ONE = (((1L shl (SURVEY_BITS - 1)) - 1) / SURVEY_MOST - 1).toDouble()
private const val MOST_AXES = 12
private const val MOST_DEPTH = 6
private const val MOST_NUMBERS = 1 shl 16
private val NODE = Regex("[01]{0,$MOST_DEPTH}")

/**
 * Units of a fleet's coordinates (`wire/SPEC.md`, 'Secret surveys'): [mean] and [deviation] of the
 * inputs of BatchNorm layers, [origin] of the sketches of gradients, and the [spreads] of the views.
 */
internal data class SurveyScale(val mean: List<Double>, val deviation: List<Double>, val origin: List<Double>, val spreads: List<Double>) {
    /** Number of coordinates of a device. */
    val width: Int get() = SURVEY_WIDTH + minOf(SURVEY_WIDTH, mean.size)
}

/**
 * Split of a [node]: devices are on side 1 if [axis] times their coordinates is above [threshold], and
 * else on side 0.
 */
internal data class Plane(val node: String, val axis: List<Double>, val threshold: Double)

/** Direction along which devices tell their bins, with the [mean] and [deviation] of their node. */
internal data class SurveyAxis(val axis: List<Double>, val mean: Double, val deviation: Double)

/** Verb by which groups are found from sums: it has the scale of coordinates, and planes. */
internal interface SurveyVerb {
    val scale: SurveyScale?
    val planes: List<Plane>
}

/**
 * Make the numbers of one exchange of the survey before it; a question about them follows. [kind] is
 * `scale`, `moments` or `density`. The devices are those of [node], to which [planes] lead.
 */
internal data class SurveySum(
    val kind: String,
    val node: String = "",
    override val scale: SurveyScale? = null,
    override val planes: List<Plane> = emptyList(),
    val axes: List<SurveyAxis> = emptyList(),
) : Verb, SurveyVerb {
    override val type: String get() = "survey-sum"

    /** Return the parts of the question about the exchange, for this number of means of inputs. */
    fun parts(numInputs: Int): Map<String, SumPart> {
        val width = scale?.width
        return when {
            width == null -> (if (numInputs > 0) mapOf("means" to 16.0, "squares" to 256.0, "variances" to 256.0) else emptyMap())
                .mapValues { (_, clip) -> SumPart(numInputs, clip) } + mapOf("sketch" to SumPart(SURVEY_WIDTH, 4.0), "length" to SumPart(1, 16.0))
            kind == "moments" ->
                mapOf("coordinates" to SumPart(width, SURVEY_CLIP), "products" to SumPart(width * (width + 1) / 2, SURVEY_CLIP * SURVEY_CLIP))
            else -> mapOf("bins" to SumPart(axes.size * SURVEY_BINS, ONE))
        }
    }
}

/** Report the node that the [planes] lead the device to, by its survey. */
internal data class TellGroup(override val scale: SurveyScale, override val planes: List<Plane>) : Verb, SurveyVerb {
    override val type: String get() = "tell-group"
}

/** Return the fields of a scale of coordinates. */
internal fun fieldsOf(scale: SurveyScale): Map<String, Any?> =
    linkedMapOf("mean" to scale.mean, "deviation" to scale.deviation, "origin" to scale.origin, "spreads" to scale.spreads)

/** Return the fields of a plane. */
internal fun fieldsOf(plane: Plane): Map<String, Any?> = linkedMapOf("node" to plane.node, "axis" to plane.axis, "threshold" to plane.threshold)

/** Return the fields of a verb by which groups are found, without its type. */
internal fun surveyFields(verb: SurveyVerb): Map<String, Any?> = when (verb) {
    is SurveySum -> linkedMapOf(
        "kind" to verb.kind,
        "node" to verb.node,
        "scale" to verb.scale?.let(::fieldsOf),
        "planes" to verb.planes.map(::fieldsOf),
        "axes" to verb.axes.map { linkedMapOf("axis" to it.axis, "mean" to it.mean, "deviation" to it.deviation) },
    )
    else -> linkedMapOf("scale" to verb.scale?.let(::fieldsOf), "planes" to verb.planes.map(::fieldsOf))
}

/**
 * Return the exchange of a JSON object.
 *
 * @throws MalformedException a field is missing or wrong
 */
internal fun surveySumOf(f: Fields, path: String): SurveySum {
    val kind = f.oneOf("kind", listOf("scale", "moments", "density"))
    val node = nodeIn(f, "node", "")
    val scale = f.objectOrNull("scale", ::scaleOf)
    val planes = f.list("planes", emptyList()) { it, at -> planeOf(Fields(it, at)) }
    val axes = f.list("axes", emptyList()) { it, at ->
        Fields(it, at).run { SurveyAxis(numbers(this, "axis"), double("mean"), double("deviation", expected = "above 0") { it > 0 }) }
    }
    val fits = (kind == "scale") == (scale == null) && (kind == "density") == axes.isNotEmpty() && axes.size <= MOST_AXES &&
        planes.map { it.node } == node.indices.map { node.take(it) } && (scale != null || node.isEmpty()) &&
        (planes.map { it.axis } + axes.map { it.axis }).all { it.size == scale?.width }
    if (!fits) throw MalformedException("$path: scale, planes and axes do not fit the exchange '$kind' of node '$node'")
    return SurveySum(kind, node, scale, planes, axes)
}

/**
 * Return the verb by which a device tells its group, of a JSON object.
 *
 * @throws MalformedException a field is missing or wrong
 */
internal fun tellGroupOf(f: Fields, path: String): TellGroup {
    val scale = scaleOf(f.obj("scale"))
    val planes = f.list("planes") { it, at -> planeOf(Fields(it, at)) }
    val nodes = planes.map { it.node }
    val isTree = nodes.toSet().size == nodes.size && nodes.all { it.isEmpty() || it.dropLast(1) in nodes } && nodes.all { it.length < MOST_DEPTH }
    if (planes.size !in 1 until (1 shl MOST_DEPTH) || !isTree || planes.any { it.axis.size != scale.width }) {
        throw MalformedException("$path: planes must split each node once, by axes of ${scale.width} numbers")
    }
    return TellGroup(scale, planes)
}

private fun scaleOf(f: Fields): SurveyScale {
    val scale = SurveyScale(numbers(f, "mean"), numbers(f, "deviation"), numbers(f, "origin"), numbers(f, "spreads"))
    val fits = scale.mean.size == scale.deviation.size && scale.origin.size == SURVEY_WIDTH && scale.spreads.size == (if (scale.mean.isEmpty()) 1 else 2)
    if (!fits || (scale.deviation + scale.spreads).any { it <= 0 }) throw MalformedException("scale: its lengths do not fit each other, or a unit is not above 0")
    return scale
}

private fun planeOf(f: Fields) = Plane(nodeIn(f, "node"), numbers(f, "axis"), f.double("threshold"))

/** Return the path of a node in a field of a message. */
internal fun nodeIn(f: Fields, key: String, default: String? = null): String =
    f.string(key, default).also { if (!NODE.matches(it)) throw MalformedException("$key: expected at most $MOST_DEPTH digits 0 or 1") }

private fun numbers(f: Fields, key: String): List<Double> = f.list(key) { it, at ->
    (it as? JsonNumber)?.text?.toDouble()?.takeIf { number -> number.isFinite() } ?: throw MalformedException("$at: expected a number")
}.also { if (it.size > MOST_NUMBERS) throw MalformedException("$key: expected at most $MOST_NUMBERS numbers") }
