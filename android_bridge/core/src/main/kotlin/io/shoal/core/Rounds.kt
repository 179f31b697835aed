package io.shoal.core

import io.shoal.core.wire.Acknowledge
import io.shoal.core.wire.Busy
import io.shoal.core.wire.DeclineReason
import io.shoal.core.wire.Finish
import io.shoal.core.wire.Plan
import io.shoal.core.wire.Refuse
import io.shoal.core.wire.Reply

/** What the agent does next: work on the plan, send the pending update, decline a plan, drop the update, or nothing. */
internal sealed interface Action {
    object Work : Action

    object Send : Action

    object Drop : Action

    object Nothing : Action

    /** [proof] goes with the reason `stale`. */
    data class Decline(val reason: DeclineReason, val detail: String, val proof: String = "") : Action
}

/**
 * What a device does about the next message (`wire/SPEC.md`, 'Order of plans'); pure, the same rules as `edge_client/core/session.py`: a plan
 * is carried out once; a finished update is kept until the aggregator acknowledges or refuses it; what speaks for an earlier start of the
 * aggregator than the device has heard is answered with the proof of the later one; work that ends the client again and again is not
 * started for ever.
 */
internal object Rounds {
    /** How often work on one plan is started, at most; likewise taking one offered model into use. */
    const val MOST_TRIES = 5

    /** A plan arrived. [text]: as it came; [nowS]: what the device knows of the aggregator's clock. */
    fun onPlan(session: Session, plan: Plan, text: String, nowS: Double): Pair<Session, Action> {
        val held = session.plan
        if (held != null && plan.epoch < held.epoch) {
            val detail = "the plan's epoch is ${plan.epoch}, a plan of epoch ${held.epoch} came before"
            return Pair(session, Action.Decline(DeclineReason.STALE, detail, session.taken))
        }
        if (held != null && sameWork(held, plan)) {
            val newer = session.copy(plan = plan, taken = text)
            if (session.stage == Stage.PENDING) return Pair(newer, Action.Send)
            if (session.stage == Stage.WORKING) return Pair(newer, Action.Nothing)
            if (plan.epoch == held.epoch) {
                return Pair(session, session.reason?.let { Action.Decline(it, session.detail) } ?: Action.Nothing)
            }
        } else if (held != null && held.runId == plan.runId && held.epoch == plan.epoch && ORDER.compare(plan, held) < 0) {
            return Pair(session, Action.Nothing)
        }
        val taken = session.copy(plan = plan, taken = text, stage = Stage.WORKING, tries = 0, reached = 0, update = "", reason = null, detail = "")
        return expired(taken, plan, nowS) ?: Pair(taken, Action.Work)
    }

    /** The plan's deadline is over, as far as the device knows: it is declined. Else null. */
    fun expired(session: Session, plan: Plan, nowS: Double): Pair<Session, Action>? {
        if (!(nowS > plan.deadlineAtS)) return null
        return onDeclined(session, plan, DeclineReason.EXPIRED, "its deadline was over ${(nowS - plan.deadlineAtS).toLong()} s ago")
    }

    /** Work on the [plan], which was taken, is about to start. To be saved before it does. */
    fun onStart(session: Session, plan: Plan): Pair<Session, Action> {
        if (session.tries >= MOST_TRIES) {
            val detail = "work on it was started ${session.tries} times and ended this client each time"
            return onDeclined(session, plan, DeclineReason.QUARANTINED, detail)
        }
        return Pair(session.copy(tries = session.tries + 1), Action.Work)
    }

    /** The client ends in good order: the work that it leaves did not fail. */
    fun onStopped(session: Session): Session =
        if (session.stage == Stage.WORKING) session.copy(tries = maxOf(0, session.tries - 1)) else session

    /**
     * A checkpoint of the work lies on disk, after so many [runs] of a graph. Work that comes further than ever before does not fail, however
     * often it is ended; a graph that ends the client is met again at the same place.
     */
    fun onProgress(session: Session, plan: Plan, runs: Long): Session =
        if (isWorkedOn(session, plan) && session.tries > 0 && runs > session.reached) session.copy(tries = 0, reached = runs) else session

    /**
     * Work that was started goes on from a checkpoint, after so many [runs] of a graph. If that is further than ever, the starts before this one
     * came further; this one has not yet.
     */
    fun onResumed(session: Session, plan: Plan, runs: Long): Session =
        if (isWorkedOn(session, plan) && runs > session.reached) session.copy(tries = minOf(session.tries, 1), reached = runs) else session

    /** Whether no work was left between two sessions: none was done, or the same goes on. */
    fun stillWorks(before: Session, after: Session): Boolean =
        before.stage != Stage.WORKING || before.plan == null || isWorkedOn(after, before.plan)

    /** The plan was carried out and its update, with this digest, is stored. If another plan came meanwhile, that one stays. */
    fun onExecuted(session: Session, plan: Plan, update: String): Session =
        if (isWorkedOn(session, plan)) session.copy(stage = Stage.PENDING, update = update, tries = 0) else session

    /** The plan is not carried out; it is not tried again. If another plan came meanwhile, that one stays. */
    fun onDeclined(session: Session, plan: Plan, reason: DeclineReason, detail: String): Pair<Session, Action> {
        val declined = session.copy(stage = Stage.DECLINED, reason = reason, detail = detail, tries = 0)
        return Pair(if (isWorkedOn(session, plan)) declined else session, Action.Decline(reason, detail))
    }

    /** The aggregator answered. */
    fun onReply(session: Session, reply: Reply): Pair<Session, Action> = when (reply) {
        is Finish -> Pair(onFinish(session, reply), Action.Nothing)
        is Acknowledge -> onAnswer(session, reply.update)
        is Refuse -> onAnswer(session, reply.update)
        is Busy -> Pair(session, Action.Nothing)
    }

    /** Whether two plans are the same round and attempt of the same run: one update answers both. */
    fun sameWork(one: Plan, other: Plan): Boolean = one.runId == other.runId && ORDER.compare(one, other) == 0

    /** The model that a finish names is to be taken into use. One that failed before is not tried again because it is offered again. */
    private fun onFinish(session: Session, reply: Finish): Session {
        if (reply.epoch < maxOf(session.offeredEpoch, session.plan?.epoch ?: 0)) return session
        val over = session.stage == Stage.WORKING && session.plan?.runId == reply.runId
        val known = session.copy(offeredEpoch = reply.epoch)
        val heard = if (over) known.copy(stage = Stage.ANSWERED, tries = 0) else known
        val same = session.offer?.let { listOf(it.run, it.bundle, it.model) } == listOf(reply.runId, reply.bundle, reply.model)
        return if (reply.releases || same) heard else heard.copy(offer = Offer(reply.epoch, reply.runId, reply.bundle, reply.model))
    }

    private fun onAnswer(session: Session, update: String): Pair<Session, Action> {
        if (session.stage != Stage.PENDING || update != session.update) return Pair(session, Action.Nothing)
        return Pair(session.copy(stage = Stage.ANSWERED, update = ""), Action.Drop)
    }

    private fun isWorkedOn(session: Session, plan: Plan) =
        session.stage == Stage.WORKING && session.plan != null && sameWork(session.plan, plan)

    private val ORDER = compareBy<Plan>({ it.round }, { it.attempt })
}
