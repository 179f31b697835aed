package io.shoal.core

import io.shoal.core.wire.DeclineReason
import io.shoal.core.wire.Fields
import io.shoal.core.wire.Plan
import io.shoal.core.wire.digest
import io.shoal.core.wire.fieldsOf
import io.shoal.core.wire.jsonText
import io.shoal.core.wire.messageOf
import io.shoal.core.wire.parseJson
import java.util.Locale

/** A session as two lines: JSON, as the Python side keeps it (`edge_client/core/session.py`), and the SHA-256 of that line. */
internal fun encodeSession(session: Session): ByteArray {
    val fields = linkedMapOf(
        "plan" to session.plan?.let(::fieldsOf),
        "taken" to session.taken,
        "stage" to session.stage.name.lowercase(Locale.ROOT),
        "tries" to session.tries,
        "update" to session.update,
        "reason" to session.reason?.text,
        "detail" to session.detail,
        "versions" to session.versions,
        "final_model" to session.finalModel,
        "final_bundle" to session.finalBundle,
        "final_run" to session.finalRun,
        "final_epoch" to session.finalEpoch,
        "trials" to session.trials,
    )
    val line = jsonText(fields).toByteArray()
    return line + '\n'.code.toByte() + digest(line).toByteArray()
}

/** @throws Malformed not a session, or one that was damaged */
internal fun decodeSession(payload: ByteArray): Session {
    val end = payload.indexOf('\n'.code.toByte())
    val line = if (end < 0) payload else payload.copyOf(end)
    if (end < 0 || !payload.copyOfRange(end + 1, payload.size).contentEquals(digest(line).toByteArray())) {
        throw Malformed("session of ${payload.size} bytes: its SHA-256 does not fit")
    }
    val f = Fields(parseJson(line), "session")
    return Session(
        plan = f.objectOrNull("plan") { messageOf(it) as? Plan ?: throw Malformed("session: its plan is another message") },
        taken = f.string("taken"),
        stage = Stage.valueOf(f.oneOf("stage", Stage.entries.map { it.name.lowercase(Locale.ROOT) }).uppercase(Locale.ROOT)),
        tries = f.count("tries").toInt(),
        update = f.maybeDigest("update"),
        reason = f.stringOrNull("reason")?.let { said -> DeclineReason.entries.firstOrNull { it.text == said } },
        detail = f.string("detail"),
        versions = f.map("versions") { it, path -> Fields.countOf(it, path) },
        finalModel = f.maybeDigest("final_model"),
        finalBundle = f.maybeDigest("final_bundle"),
        finalRun = f.string("final_run"),
        finalEpoch = f.count("final_epoch"),
        trials = f.count("trials").toInt(),
    )
}
