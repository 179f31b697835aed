package io.shoal.core

import io.shoal.core.random.RandomState
import io.shoal.core.wire.Fields
import io.shoal.core.wire.JsonString
import io.shoal.core.wire.Limits
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.encodeTensors
import io.shoal.core.wire.jsonText
import io.shoal.core.wire.parseJson

/**
 * Return a checkpoint as a tensor file. Its message holds the basis and the place
 * (`edge_client/core/checkpoint.py`).
 */
internal fun encodeCheckpoint(basis: Basis, checkpoint: Checkpoint): ByteArray {
    val within = checkpoint.within
    val numbers = flat(checkpoint.evaluated) + flat(checkpoint.trained) + listOf(within.numExamples.toDouble(), within.lossSum, within.numCorrect)
    val tensors = hashMapOf("numbers" to bits(numbers), "losses" to bits(within.losses))
    within.order?.let { order -> tensors["order"] = Tensor.of(LongArray(order.size) { order[it].toLong() }) }
    if (within.rows.isNotEmpty()) tensors["rows"] = concatenate(within.rows)
    val parts = listOf(checkpoint.tensors, checkpoint.sent, checkpoint.protected, within.sums.mapValues { it.value.bits() })
    for ((part, partTensors) in PARTS.zip(parts)) partTensors.forEach { (name, tensor) -> tensors["$part/$name"] = tensor }
    val place = checkpoint.place
    val text = linkedMapOf(
        "basis" to linkedMapOf(
            "format" to basis.format,
            "client" to basis.client,
            "runtime" to basis.runtime,
            "plan" to basis.plan,
            "windows" to basis.windows,
        ),
        "place" to linkedMapOf(
            "verb" to place.verb,
            "batches" to place.batches,
            "runs" to place.runs,
            "num_steps" to place.numSteps,
            "model" to place.model,
            "random" to linkedMapOf("state" to place.random.state, "half" to place.random.half),
            "seconds" to place.seconds,
            "changed" to place.changed,
            "tuned" to place.tuned,
        ),
    )
    return encodeTensors(tensors, jsonText(text))
}

/**
 * Parse the output of [encodeCheckpoint].
 *
 * @throws WireException it is not a checkpoint, or one of its numbers is impossible
 */
internal fun decodeCheckpoint(payload: ByteArray): Pair<Basis, Checkpoint> {
    val (tensors, text) = decodeTensors(payload, Limits.OWN_FILES)
    val message = Fields(parseJson(text.toByteArray()), "checkpoint")
    val parts = PARTS.associateWith { HashMap<String, Tensor>() }
    val others = HashMap<String, Tensor>()
    for ((name, tensor) in tensors) {
        val part = if ('/' in name) parts[name.substringBefore('/')] ?: throw unexpected(name) else others
        part[name.substringAfter('/')] = tensor
    }
    val numbers = numbersOf(others.remove("numbers"), "numbers")
    if (numbers.size != NUMBERS) throw MalformedException("checkpoint: expected $NUMBERS numbers, got ${numbers.size}")
    val place = placeOf(message.obj("place"))
    val within = Within().apply {
        batches = place.batches
        order = others.remove("order")?.let(::orderOf)
        numExamples = count(numbers[6])
        lossSum = numbers[7]
        numCorrect = numbers[8]
        others.remove("rows")?.let { if (it.shape.isEmpty()) throw MalformedException("checkpoint: rows must have at least one dimension") else rows += it }
        losses += numbersOf(others.remove("losses"), "losses").toList()
        parts.getValue("sums").forEach { (name, bits) -> sums[name] = Total(bits.shape, numbersOf(bits, name)) }
    }
    others.keys.minOrNull()?.let { throw unexpected(it) }
    val (planTensors, sent, protected) = listOf("tensors", "sent", "protected").map(parts::getValue)
    val metrics = Pair(metricsOf(numbers, 0), metricsOf(numbers, 3))
    return Pair(basisOf(message.obj("basis")), Checkpoint(place, planTensors, sent, protected, metrics.first, metrics.second, within))
}

internal fun basisOf(f: Fields) =
    Basis(f.count("format"), f.string("client"), f.string("runtime"), f.digest("plan"), f.digest("windows"))

internal fun randomOf(f: Fields): RandomState {
    val state = f.string("state")
    if (state.length != 32 || !state.all { it in '0'..'9' || it in 'a'..'f' }) {
        throw MalformedException("checkpoint: the state of the random numbers must be 32 hexadecimal digits, got '${state.take(40)}'")
    }
    return RandomState(state, f.intOrNull("half", 0..0xffffffffL))
}

private fun placeOf(f: Fields) = Place(
    verb = f.int("verb", 0L..Int.MAX_VALUE).toInt(),
    batches = f.count("batches"),
    runs = f.count("runs"),
    numSteps = f.count("num_steps"),
    model = f.digest("model"),
    random = randomOf(f.obj("random")),
    seconds = f.double("seconds", expected = "a time") { it >= 0 && it < Double.POSITIVE_INFINITY },
    changed = keys(f, "changed"),
    tuned = keys(f, "tuned"),
)

private fun keys(f: Fields, name: String): List<String> =
    f.list(name, emptyList()) { it, path -> (it as? JsonString)?.value ?: throw MalformedException("$path: expected a tensor's name") }

private fun orderOf(tensor: Tensor): IntArray {
    if (tensor.dtype != DType.INT64 || tensor.shape.size != 1) throw MalformedException("checkpoint: order is $tensor, expected int64[n]")
    return tensor.toLongArray().map { if (it in 0..Int.MAX_VALUE) it.toInt() else throw MalformedException("checkpoint: window $it does not exist") }.toIntArray()
}

private fun flat(metrics: Metrics) = listOf(metrics.numExamples.toDouble(), metrics.lossSum, metrics.numCorrect.toDouble())

private fun metricsOf(numbers: DoubleArray, at: Int) = Metrics(count(numbers[at]), numbers[at + 1], count(numbers[at + 2]))

private fun count(number: Double): Long =
    if (number >= 0 && number <= LARGEST_COUNT) number.toLong() else throw MalformedException("checkpoint: the count must be between 0 and 2^53, got $number")

/** Return float64 numbers as int64 with the same bits: tensor files have no float64. */
private fun bits(numbers: List<Double>): Tensor = Tensor.of(LongArray(numbers.size) { numbers[it].toRawBits() })

private fun numbersOf(bits: Tensor?, name: String): DoubleArray {
    if (bits == null || bits.dtype != DType.INT64) {
        throw MalformedException("checkpoint: tensor '${name.take(80)}' is ${bits ?: "missing"}, expected int64")
    }
    return bits.toLongArray().map(Double::fromBits).toDoubleArray()
}

private fun unexpected(name: String) = MalformedException("checkpoint: unexpected tensor '${name.take(80)}'")

private val PARTS = listOf("tensors", "sent", "protected", "sums")
private const val NUMBERS = 9
private const val LARGEST_COUNT = 9007199254740992.0
