package io.shoal.core

import io.shoal.core.wire.Acknowledge
import io.shoal.core.wire.Busy
import io.shoal.core.wire.DeclineReason
import io.shoal.core.wire.Fields
import io.shoal.core.wire.Finish
import io.shoal.core.wire.JsonObject
import io.shoal.core.wire.Plan
import io.shoal.core.wire.Refuse
import io.shoal.core.wire.Release
import io.shoal.core.wire.encode
import io.shoal.core.wire.parseJson
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.TestFactory
import java.io.File
import java.util.Random
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertTrue

class RoundsTest {
    private val a = "a".repeat(64)

    private fun plan(epoch: Long, round: Long, attempt: Long = 0, run: String = "r", deadlineAtS: Double = 1000.0) =
        Plan(run, epoch, round, attempt, "d", a, a, emptyList(), 0, deadlineAtS)

    private fun onPlan(session: Session, plan: Plan, nowS: Double = 0.0) =
        Rounds.onPlan(session, plan, encode(plan).decodeToString(), nowS)

    @TestFactory
    fun `scenario that every implementation plays`(): List<DynamicTest> {
        val scenarios = parseJson(File(repository, "wire/vectors/session.json").readBytes())
        val read = Fields(JsonObject(mapOf("all" to scenarios)), "session.json").list("all") { it, path -> Fields(it, path) }
        assertTrue(read.size >= 20)
        return read.map { scenario ->
            DynamicTest.dynamicTest(scenario.string("name")) {
                var session = Session()
                var models = Pair<Current?, Current?>(null, null)
                for (step in scenario.list("steps") { it, path -> Fields(it, path) }) {
                    if (step.string("event") in OFFERS) {
                        val (changed, next) = playOffer(session, models, step)
                        session = changed
                        models = next
                    } else if (step.string("event") == "client start") {
                        assertEquals(step.string("action"), if (Rounds.wasKilled(session)) "killed" else "none")
                        session = session.copy(underWay = false)
                    } else {
                        val (changed, action) = play(session, step)
                        session = changed
                        assertEquals(step.string("action"), textOf(action))
                        assertEquals(textOf(action) == "decline stale", (action as? Action.Decline)?.proof.orEmpty().isNotEmpty())
                    }
                    assertEquals(session, decodeSession(encodeSession(session)))
                }
                assertEquals(scenario.string("offered").repeat(64), session.offer?.model.orEmpty())
            }
        }
    }

    private fun textOf(action: Action) = when (action) {
        is Action.Decline -> "decline ${action.reason.text}"
        Action.Work -> "work"
        Action.Send -> "send"
        Action.Drop -> "drop"
        Action.Nothing -> "none"
    }

    private fun play(session: Session, step: Fields): Pair<Session, Action> = when (val event = step.string("event")) {
        "plan" -> {
            val (round, attempt) = Pair(step.count("round"), step.count("attempt"))
            onPlan(session, plan(step.count("epoch"), round, attempt, step.string("run"), step.double("deadline_at_s")), step.double("now_s"))
        }
        "start" -> Rounds.onStart(session, session.plan!!)
        "stopped" -> Pair(Rounds.onStopped(session), Action.Nothing)
        "resumed" -> Pair(Rounds.onResumed(session, session.plan!!, step.count("runs")), Action.Nothing)
        "progress" -> Pair(Rounds.onProgress(session, session.plan!!, step.count("runs")), Action.Nothing)
        "executed" -> Pair(Rounds.onExecuted(session, session.plan!!, step.string("update").repeat(64)), Action.Nothing)
        "declined" -> {
            val reason = DeclineReason.entries.first { it.text == step.string("reason") }
            Rounds.onDeclined(session, session.plan!!, reason, "")
        }
        "busy" -> Rounds.onReply(session, Busy("d", step.string("update").repeat(64), 1.0))
        "refuse" -> Rounds.onReply(session, Refuse("d", "not-finite", "", "update", step.string("update").repeat(64)))
        "acknowledge" -> Rounds.onReply(session, Acknowledge("d", step.string("update").repeat(64)))
        else -> throw AssertionError(event)
    }

    /** Play a step about models in use; return the session, the model in use and the one before. */
    private fun playOffer(session: Session, models: Pair<Current?, Current?>, step: Fields): Pair<Session, Pair<Current?, Current?>> {
        val (current, before) = models
        fun isOpen(session: Session, models: Pair<Current?, Current?>) = Offers.open(session, Offers.newest(models.first, models.second)) != null
        fun checkedStart(changed: Session): Session = changed.also {
            val begins = it.offer != session.offer && isOpen(it, models)
            assertEquals(step.string("action"), if (begins) "try" else "none")
        }
        fun model() = step.string("offered").repeat(64)
        return when (val event = step.string("event")) {
            "release" -> Pair(
                checkedStart(Offers.onRelease(session, Release("d", step.count("epoch"), step.count("number"), "", "r", a, model()))),
                models,
            )
            "finish" -> {
                val finish = Finish("d", step.string("run", "r"), step.count("epoch"), a, model(), step.bool("releases", false), step.count("number", 0))
                Pair(checkedStart(Rounds.onReply(session, finish).first), models)
            }
            "try" -> Pair(
                Offers.onTrying(session).also {
                    assertEquals(step.string("action"), if (isOpen(it, models)) "try" else "none")
                },
                models,
            )
            "taken" -> {
                val offer = session.offer!!
                val tensors = PersonalModelRules.of(session.personalModels, offer.bundle, offer.model)?.tensors.orEmpty()
                val next = Current(offer.bundle, offer.model, offer.run, emptyMap(), offer.number, personalModel = tensors)
                Pair(Offers.onTaken(Offers.onMeasured(session, Measurement(), "b", 1)), Pair(next, current))
            }
            "failed" -> Pair(Offers.onFailed(session, "failed"), models)
            "again" -> Pair(checkedStart(Offers.onAgain(session)), models)
            "broken off" -> Pair(Offers.onInterrupted(session), models)
            "back" -> {
                val next = Pair(Offers.goneBack(current!!, before!!, "worse"), current)
                assertEquals(step.string("action"), if (isOpen(session, next)) "try" else "none")
                Pair(session, next)
            }
            "kept" -> {
                val personalModel = PersonalModel("r", a, step.string("of").repeat(64), step.string("tensors").repeat(64))
                val changed = Offers.onPersonalModel(session, personalModel)
                assertEquals(step.string("action"), if (isOpen(changed, models)) "try" else "none")
                Pair(changed, models)
            }
            "report" -> {
                assertEquals(step.string("used").repeat(64), current?.personalModel.orEmpty())
                val report = Offers.inUse(session, "d", current, 0)
                assertEquals(listOf(step.count("number"), step.count("offered")), listOf(report.number, report.offered))
                assertEquals(listOf(step.string("problem").isEmpty(), step.bool("alone")), listOf(report.problem.isEmpty(), report.alone.isNotEmpty()))
                Pair(session, models)
            }
            else -> throw AssertionError(event)
        }
    }

    private companion object {
        val OFFERS = setOf("release", "finish", "try", "taken", "failed", "broken off", "again", "kept", "back", "report")
    }

    @Test
    fun `within an epoch no round is worked on after it was answered, and no earlier epoch is obeyed`() {
        val random = Random(4)
        repeat(2_000) {
            var session = Session()
            var answered: Plan? = null
            repeat(40) {
                val next = plan(1L + random.nextInt(3), 1L + random.nextInt(4), random.nextInt(2).toLong())
                when (random.nextInt(5)) {
                    0, 1 -> {
                        val before = session.plan
                        val (changed, action) = onPlan(session, next)
                        if (action == Action.Work) {
                            assertTrue(before == null || next.epoch >= before.epoch)
                            val last = answered
                            if (last != null && last.epoch == next.epoch) {
                                assertTrue(compareValuesBy(next, last, { it.attempt }, { it.round }) > 0)
                            }
                        }
                        session = changed
                    }
                    2 -> session.plan?.let { session = Rounds.onExecuted(session, it, a) }
                    3 -> session.plan?.let { session = Rounds.onDeclined(session, it, DeclineReason.DATA, "").first }
                    else -> {
                        val (changed, action) = Rounds.onReply(session, Acknowledge("d", a))
                        session = changed
                        if (action == Action.Drop) answered = session.plan
                    }
                }
                assertEquals(session, decodeSession(encodeSession(session)))
            }
        }
    }
}
