package io.shoal.core

import io.shoal.core.wire.Acknowledge
import io.shoal.core.wire.Finish
import io.shoal.core.wire.Plan
import io.shoal.core.wire.Refuse
import io.shoal.core.wire.Reply

/** What the agent does next: work on the accepted plan, send the pending update again, drop it, or nothing. */
internal enum class Action { WORK, SEND, DROP, NONE }

/**
 * What a device does about the next message; pure, the same rules as `edge_client/core/session.py`: a plan is executed once; a finished
 * update is kept until the aggregator acknowledges or refuses it, and sent again whenever the connection or the aggregator is new; a plan
 * for a later round, or of another run, replaces what was not finished; a plan for a round that is already answered changes nothing, unless
 * the answer was a refusal and the round was opened again.
 */
internal object Rounds {
    /** A plan arrived. */
    fun onPlan(session: Session, plan: Plan): Pair<Session, Action> {
        val sameRun = plan.runId == session.runId
        if (session.pending?.let { it.runId == plan.runId && it.round == plan.round } == true) return Pair(session, Action.SEND)
        val again = plan.round == session.answered && session.givenUpS > 0 && session.givenUpS < plan.deadlineAtS
        if (sameRun && plan.round <= session.answered && !again) return Pair(session, Action.NONE)
        if (session.plan != null && sameRun && plan.round < session.plan.round) return Pair(session, Action.NONE)
        val answered = if (sameRun) minOf(session.answered, plan.round - 1) else 0
        return Pair(session.copy(runId = plan.runId, answered = answered, plan = plan, pending = null, finished = false), Action.WORK)
    }

    /** The accepted plan was carried out and its update is stored. If another plan came meanwhile, that one stays. */
    fun onExecuted(session: Session, plan: Plan): Session =
        if (session.plan != plan) session else session.copy(plan = null, pending = Pending(plan.runId, plan.round, plan.deadlineAtS))

    /** The accepted plan cannot be carried out; it is not tried again. */
    fun onFailed(session: Session, plan: Plan): Session =
        if (session.plan != plan) session else session.copy(plan = null, answered = plan.round, givenUpS = plan.deadlineAtS)

    /** The aggregator answered. */
    fun onReply(session: Session, reply: Reply): Pair<Session, Action> = when (reply) {
        is Finish -> Pair(
            session.copy(runId = reply.runId, plan = null, finalModel = reply.model, finalBundle = reply.bundle, finished = true),
            Action.NONE,
        )
        is Acknowledge -> onAnswer(session, reply.runId, reply.round, givenUp = false)
        is Refuse -> {
            val unreadable = reply.about == "update" && reply.runId.isEmpty()
            val pending = session.pending.takeIf { unreadable }
            onAnswer(session, pending?.runId ?: reply.runId, pending?.round ?: reply.round, givenUp = true)
        }
    }

    private fun onAnswer(session: Session, runId: String, round: Long, givenUp: Boolean): Pair<Session, Action> {
        val pending = session.pending
        if (pending == null || pending.runId != runId || pending.round != round) return Pair(session, Action.NONE)
        val changed = session.copy(pending = null, answered = pending.round, givenUpS = if (givenUp) pending.deadlineAtS else 0.0)
        return Pair(changed, Action.DROP)
    }
}
