package io.shoal.core

import io.shoal.core.wire.Fields
import io.shoal.core.wire.Plan
import io.shoal.core.wire.fieldsOf
import io.shoal.core.wire.jsonText
import io.shoal.core.wire.messageOf
import io.shoal.core.wire.parseJson

/** A session as JSON, as the Python side keeps it (`edge_client/core/session.py`). */
internal fun encodeSession(session: Session): ByteArray = jsonText(
    linkedMapOf(
        "run_id" to session.runId,
        "answered" to session.answered,
        "given_up_s" to session.givenUpS,
        "plan" to session.plan?.let(::fieldsOf),
        "pending" to session.pending?.let {
            linkedMapOf("run_id" to it.runId, "round" to it.round, "deadline_at_s" to it.deadlineAtS)
        },
        "versions" to session.versions,
        "final_model" to session.finalModel,
        "final_bundle" to session.finalBundle,
        "finished" to session.finished,
    ),
).toByteArray()

/** @throws Malformed not a session */
internal fun decodeSession(payload: ByteArray): Session {
    val f = Fields(parseJson(payload), "session")
    return Session(
        runId = f.string("run_id", ""),
        answered = f.count("answered", 0),
        givenUpS = f.double("given_up_s", 0.0),
        plan = f.objectOrNull("plan") { messageOf(it) as? Plan ?: throw Malformed("session: its plan is another message") },
        pending = f.objectOrNull("pending") { Pending(it.string("run_id"), it.count("round"), it.double("deadline_at_s", 0.0)) },
        versions = f.map("versions", emptyMap()) { it, path -> Fields.countOf(it, path) },
        finalModel = f.string("final_model", ""),
        finalBundle = f.string("final_bundle", ""),
        finished = f.bool("finished", false),
    )
}
