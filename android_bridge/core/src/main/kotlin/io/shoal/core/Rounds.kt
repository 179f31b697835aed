package io.shoal.core

import io.shoal.core.wire.Acknowledge
import io.shoal.core.wire.Busy
import io.shoal.core.wire.DeclineReason
import io.shoal.core.wire.Finish
import io.shoal.core.wire.Plan
import io.shoal.core.wire.Refuse
import io.shoal.core.wire.Reply

/**
 * Next action of the agent: work on the plan, send the pending update, decline a plan, drop the
 * update, or nothing.
 */
internal sealed interface Action {
    object Work : Action

    object Send : Action

    object Drop : Action

    object Nothing : Action

    /** [proof] belongs to the reason `stale`. */
    data class Decline(val reason: DeclineReason, val detail: String, val proof: String = "") : Action
}

/**
 * Reaction of a device to the next message (`wire/SPEC.md`, 'Order of plans'); pure, with the rules
 * of `edge_client/core/session.py`. A plan is carried out once. A finished update is kept until the
 * aggregator acknowledges or refuses it. A plan from an earlier epoch than the latest one is
 * answered with the proof of the later epoch. Work that ends the client repeatedly is given up.
 *
 * Assignments of all campaigns are numbered together ([Plan.attempt]), so the last accepted plan
 * alone tells which plans of its epoch are over, of any campaign. No list of campaigns has to be
 * stored.
 */
internal object Rounds {
    /** Maximum number of starts of work on one plan, and of starts to take up one offered model. */
    const val MOST_TRIES = 5

    /**
     * Return the session and the action after a plan came. [text] is the plan as it came, with its
     * signatures; [nowS] is the aggregator's time, as well as the device knows it.
     */
    fun onPlan(session: Session, plan: Plan, text: String, nowS: Double): Pair<Session, Action> {
        val lastPlan = session.plan
        if (lastPlan != null && plan.epoch < lastPlan.epoch) {
            val detail = "the plan's epoch is ${plan.epoch}, a plan of epoch ${lastPlan.epoch} came before"
            return Pair(session, Action.Decline(DeclineReason.STALE, detail, session.planText))
        }
        if (lastPlan != null && sameWork(lastPlan, plan)) {
            val newer = session.copy(plan = plan, planText = text)
            if (session.stage == Stage.PENDING) return Pair(newer, Action.Send)
            if (session.stage == Stage.WORKING) return Pair(newer, Action.Nothing)
            if (plan.epoch == lastPlan.epoch) {
                return Pair(session, session.reason?.let { Action.Decline(it, session.detail) } ?: Action.Nothing)
            }
            if (session.stage == Stage.ANSWERED) { // its noise would be drawn again, and count twice
                return Pair(newer, Action.Decline(DeclineReason.FAILED, "this plan was carried out before, or ended"))
            }
        } else if (lastPlan != null && lastPlan.epoch == plan.epoch && ORDER.compare(plan, lastPlan) < 0) {
            return Pair(session, Action.Nothing)
        }
        val accepted = session.copy(plan = plan, planText = text, stage = Stage.WORKING, tries = 0, reached = 0, update = "", reason = null, detail = "", underWay = false)
        return expired(accepted, plan, nowS) ?: Pair(accepted, Action.Work)
    }

    /**
     * Return the session and the decline if the plan's deadline passed, as far as the device knows,
     * or null.
     */
    fun expired(session: Session, plan: Plan, nowS: Double): Pair<Session, Action>? {
        if (!(nowS > plan.deadlineAtS)) return null
        return onDeclined(session, plan, DeclineReason.EXPIRED, "its deadline was over ${(nowS - plan.deadlineAtS).toLong()} s ago")
    }

    /**
     * Return the session and the action before work on the [plan] starts. Save the session before
     * the work starts: a start that ends the client has to count.
     */
    fun onStart(session: Session, plan: Plan): Pair<Session, Action> {
        if (session.tries >= MOST_TRIES) {
            val detail = "work on it was started ${session.tries} times and ended this client each time"
            return onDeclined(session, plan, DeclineReason.QUARANTINED, detail)
        }
        return Pair(session.copy(tries = session.tries + 1, underWay = true), Action.Work)
    }

    /** Return the session at an orderly stop of the client: the unfinished work did not fail. */
    fun onStopped(session: Session): Session =
        if (session.stage == Stage.WORKING) session.copy(tries = maxOf(0, session.tries - 1), underWay = false) else session

    /**
     * Return true if the client ended in the midst of the work. Ask at a start of the client.
     */
    fun wasKilled(session: Session): Boolean = session.stage == Stage.WORKING && session.underWay

    /**
     * Return the session after a checkpoint was stored, at [runs] runs of graphs. Work that gets
     * further than before does not fail, however often it is interrupted: the tries count anew. A
     * graph that ends the client ends it at the same place again.
     */
    fun onProgress(session: Session, plan: Plan, runs: Long): Session =
        if (isWorkedOn(session, plan) && session.tries > 0 && runs > session.reached) session.copy(tries = 0, reached = runs) else session

    /**
     * Return the session after work resumed from a checkpoint, at [runs] runs of graphs. If that is
     * further than before, the starts before this one made progress and do not count as tries. This
     * start has made none yet.
     */
    fun onResumed(session: Session, plan: Plan, runs: Long): Session =
        if (isWorkedOn(session, plan) && runs > session.reached) session.copy(tries = minOf(session.tries, 1), reached = runs) else session

    /** Return true if no work was abandoned between two sessions: none was done, or it goes on. */
    fun stillWorks(before: Session, after: Session): Boolean =
        before.stage != Stage.WORKING || before.plan == null || isWorkedOn(after, before.plan)

    /**
     * Return the session after the plan was carried out and its update, with this digest, was
     * stored. If another plan came in the meantime, that plan stays.
     */
    fun onExecuted(session: Session, plan: Plan, update: String): Session =
        if (isWorkedOn(session, plan)) session.copy(stage = Stage.PENDING, update = update, tries = 0, underWay = false) else session

    /**
     * Return the session and the action after the plan was declined. It is not tried again. If
     * another plan came in the meantime, that plan stays.
     */
    fun onDeclined(session: Session, plan: Plan, reason: DeclineReason, detail: String): Pair<Session, Action> {
        val declined = session.copy(stage = Stage.DECLINED, reason = reason, detail = detail, tries = 0)
        return Pair(if (isWorkedOn(session, plan)) declined else session, Action.Decline(reason, detail))
    }

    /** Return the session and the action after the aggregator answered. */
    fun onReply(session: Session, reply: Reply): Pair<Session, Action> = when (reply) {
        is Finish -> Pair(onFinish(session, reply), Action.Nothing)
        is Acknowledge -> onAnswer(session, reply.update)
        is Refuse -> onAnswer(session, reply.update)
        is Busy -> Pair(session, Action.Nothing)
    }

    /**
     * Return true if both plans are the same attempt of the same round: one update answers both.
     */
    fun sameWork(one: Plan, other: Plan): Boolean = one.runId == other.runId && ORDER.compare(one, other) == 0

    /**
     * Return the session with the model that a finish offers. A finish whose number is not greater
     * than that of the last offer is an old one that was repeated. A model that failed before is
     * not tried again just because it is offered again.
     */
    private fun onFinish(session: Session, reply: Finish): Session {
        if (reply.epoch < maxOf(session.offeredEpoch, session.plan?.epoch ?: 0)) return session
        val over = session.stage == Stage.WORKING && session.plan?.runId == reply.runId
        val current = session.copy(offeredEpoch = reply.epoch)
        val next = if (over) current.copy(stage = Stage.ANSWERED, tries = 0) else current
        val same = session.offer?.let { listOf(it.run, it.bundle, it.model) } == listOf(reply.runId, reply.bundle, reply.model)
        if (reply.releases || reply.number <= session.released) return next
        val offer = if (same) session.offer else ModelOffer(reply.epoch, reply.runId, reply.bundle, reply.model)
        return next.copy(offer = offer, released = reply.number)
    }

    private fun onAnswer(session: Session, update: String): Pair<Session, Action> {
        if (session.stage != Stage.PENDING || update != session.update) return Pair(session, Action.Nothing)
        return Pair(session.copy(stage = Stage.ANSWERED, update = ""), Action.Drop)
    }

    private fun isWorkedOn(session: Session, plan: Plan) =
        session.stage == Stage.WORKING && session.plan != null && sameWork(session.plan, plan)

    private val ORDER = compareBy<Plan>({ it.attempt }, { it.round })
}
