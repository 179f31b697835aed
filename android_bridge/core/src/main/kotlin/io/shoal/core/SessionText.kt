package io.shoal.core

import io.shoal.core.wire.DeclineReason
import io.shoal.core.wire.Fields
import io.shoal.core.wire.Plan
import io.shoal.core.wire.digest
import io.shoal.core.wire.errorReportOf
import io.shoal.core.wire.fieldsOf
import io.shoal.core.wire.jsonText
import io.shoal.core.wire.messageOf
import io.shoal.core.wire.metrics
import io.shoal.core.wire.parseJson
import java.util.Locale

/**
 * Return a session as two lines: JSON, in the format of the Python side
 * (`edge_client/core/session.py`), and the SHA-256 of that line.
 */
internal fun encodeSession(session: Session): ByteArray {
    val fields = linkedMapOf(
        "plan" to session.plan?.let(::fieldsOf),
        "plan_text" to session.planText,
        "stage" to session.stage.name.lowercase(Locale.ROOT),
        "tries" to session.tries,
        "update" to session.update,
        "reason" to session.reason?.text,
        "detail" to session.detail,
        "versions" to session.versions,
        "offer" to session.offer?.let(::fieldsOf),
        "offered_epoch" to session.offeredEpoch,
        "released" to session.released,
        "released_epoch" to session.releasedEpoch,
        "personal_models" to session.personalModels.map(::fieldsOf),
        "reached" to session.reached,
        "under_way" to session.underWay,
        "error" to session.error?.let(::fieldsOf),
    )
    val line = jsonText(fields).toByteArray()
    return line + '\n'.code.toByte() + digest(line).toByteArray()
}

/**
 * Parse the output of [encodeSession].
 *
 * @throws MalformedException it is not a session, or was damaged
 */
internal fun decodeSession(payload: ByteArray): Session {
    val end = payload.indexOf('\n'.code.toByte())
    val line = if (end < 0) payload else payload.copyOf(end)
    if (end < 0 || !payload.copyOfRange(end + 1, payload.size).contentEquals(digest(line).toByteArray())) {
        throw MalformedException("session of ${payload.size} bytes: its SHA-256 does not fit")
    }
    val f = Fields(parseJson(line), "session")
    return Session(
        plan = f.objectOrNull("plan") { messageOf(it) as? Plan ?: throw MalformedException("session: its plan is another message") },
        planText = f.string("plan_text"),
        stage = Stage.valueOf(f.oneOf("stage", Stage.entries.map { it.name.lowercase(Locale.ROOT) }).uppercase(Locale.ROOT)),
        tries = f.count("tries").toInt(),
        update = f.maybeDigest("update"),
        reason = f.stringOrNull("reason")?.let { name -> DeclineReason.entries.firstOrNull { it.text == name } },
        detail = f.string("detail"),
        versions = f.map("versions") { it, path -> Fields.countOf(it, path) },
        offer = f.objectOrNull("offer", ::offerOf),
        offeredEpoch = f.count("offered_epoch"),
        released = f.count("released"),
        releasedEpoch = f.count("released_epoch"),
        personalModels = f.list("personal_models", emptyList()) { it, path -> personalModelOf(Fields(it, path)) },
        reached = f.count("reached", 0),
        underWay = f.bool("under_way", false),
        error = f.objectOrNull("error", ::errorReportOf),
    )
}

private fun fieldsOf(offer: ModelOffer) = linkedMapOf(
    "epoch" to offer.epoch,
    "run_id" to offer.run,
    "bundle" to offer.bundle,
    "model" to offer.model,
    "number" to offer.number,
    "group" to offer.group,
    "tries" to offer.tries,
    "problem" to offer.problem,
    "is_again" to offer.again,
    "evaluated" to fieldsOf(offer.evaluated),
    "before" to fieldsOf(offer.before),
    "latency_ms" to offer.latencyMs,
)

private fun offerOf(f: Fields) = ModelOffer(
    epoch = f.count("epoch"),
    run = f.string("run_id"),
    bundle = f.digest("bundle"),
    model = f.digest("model"),
    number = f.count("number"),
    group = f.string("group"),
    tries = f.count("tries").toInt(),
    problem = f.string("problem"),
    evaluated = f.metrics("evaluated"),
    before = f.metrics("before"),
    latencyMs = f.double("latency_ms"),
    again = f.bool("is_again", false),
)

private fun fieldsOf(personalModel: PersonalModel) =
    linkedMapOf("run_id" to personalModel.run, "bundle" to personalModel.bundle, "model" to personalModel.model, "tensors" to personalModel.tensors)

internal fun personalModelOf(f: Fields) = PersonalModel(f.string("run_id"), f.digest("bundle"), f.digest("model"), f.digest("tensors"))
