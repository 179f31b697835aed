package io.shoal.core

import io.shoal.core.wire.Acknowledge
import io.shoal.core.wire.Finish
import io.shoal.core.wire.Plan
import io.shoal.core.wire.Refuse
import io.shoal.core.wire.Train
import java.util.Random
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertNull
import kotlin.test.assertTrue

class RoundsTest {
    private fun plan(round: Long, run: String = "r", deadlineAtS: Double = 9.0) =
        Plan(run, round, "d", "0".repeat(64), "1".repeat(64), listOf(Train(8)), 1, deadlineAtS)

    private fun executed(plan: Plan, session: Session = Session()) = Rounds.onExecuted(Rounds.onPlan(session, plan).first, plan)

    @Test
    fun `a plan is executed once`() {
        var session = executed(plan(1))
        assertEquals(Pair(session, Action.SEND), Rounds.onPlan(session, plan(1)))
        val (answered, action) = Rounds.onReply(session, Acknowledge("r", 1))
        session = answered
        assertNull(session.pending)
        assertEquals(Action.DROP, action)
        assertEquals(Action.NONE, Rounds.onPlan(session, plan(1)).second)
        assertEquals(Action.WORK, Rounds.onPlan(session, plan(2)).second)
    }

    @Test
    fun `a refused round is tried again only when it was opened again`() {
        val (refused, _) = Rounds.onReply(executed(plan(2)), Refuse("not-finite", "", "r", 2))
        assertEquals(Action.NONE, Rounds.onPlan(refused, plan(2)).second)
        val (again, action) = Rounds.onPlan(refused, plan(2, deadlineAtS = 99.0))
        assertEquals(Action.WORK, action)
        val (done, _) = Rounds.onReply(Rounds.onExecuted(again, plan(2, deadlineAtS = 99.0)), Acknowledge("r", 2))
        assertEquals(Action.NONE, Rounds.onPlan(done, plan(2, deadlineAtS = 199.0)).second)
    }

    @Test
    fun `a plan that cannot be carried out is not tried again`() {
        val failed = Rounds.onFailed(Rounds.onPlan(Session(), plan(3)).first, plan(3))
        assertEquals(Session(runId = "r", answered = 3, givenUpS = 9.0), failed)
        assertEquals(Action.NONE, Rounds.onPlan(failed, plan(3)).second)
    }

    @Test
    fun `another run starts afresh and an earlier round changes nothing`() {
        val (session, _) = Rounds.onPlan(Session(runId = "old", answered = 7), plan(1, "new"))
        assertEquals(Session(runId = "new", plan = plan(1, "new")), session)
        val (later, _) = Rounds.onPlan(Session(), plan(5))
        assertEquals(Pair(later, Action.NONE), Rounds.onPlan(later, plan(4)))
    }

    @Test
    fun `an answer to another round changes nothing unless it is about what could not be read`() {
        val session = executed(plan(2))
        for (reply in listOf(Acknowledge("r", 1), Acknowledge("other", 2), Refuse("malformed", "", about = "check-in"))) {
            assertEquals(Pair(session, Action.NONE), Rounds.onReply(session, reply))
        }
        assertEquals(Action.DROP, Rounds.onReply(session, Refuse("too-large", "", about = "update")).second)
    }

    @Test
    fun `a finished run names the model to use`() {
        val (session, _) = Rounds.onReply(Session(runId = "r", plan = plan(4)), Finish("r", "b", "m"))
        assertEquals(Session(runId = "r", finalModel = "m", finalBundle = "b", finished = true), session)
    }

    @Test
    fun `no round is worked on after it was answered`() {
        val random = Random(4)
        repeat(2_000) {
            var (session, answered) = Pair(Session(), 0L)
            repeat(30) {
                val number = 1L + random.nextInt(5)
                when (random.nextInt(4)) {
                    0 -> Rounds.onPlan(session, plan(number)).let { (changed, action) ->
                        assertTrue(action != Action.WORK || number > answered)
                        session = changed
                    }
                    1 -> session = session.plan?.let { Rounds.onExecuted(session, it) } ?: session
                    else -> {
                        val reply = if (random.nextBoolean()) Acknowledge("r", number) else Refuse("malformed", "", "r", number)
                        val (changed, action) = Rounds.onReply(session, reply)
                        session = changed
                        if (action == Action.DROP) answered = number
                    }
                }
                assertTrue(session.plan?.let { it.round > answered } ?: true)
            }
        }
    }
}
