package io.shoal.core

import io.shoal.core.wire.Fields
import io.shoal.core.wire.Json
import io.shoal.core.wire.JsonObject
import io.shoal.core.wire.parseJson
import org.junit.jupiter.api.io.TempDir
import java.io.File
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertNull
import kotlin.test.assertTrue

class QuestionsTest {
    @TempDir
    lateinit var folder: File

    private val vectors = Fields(parseJson(File(repository, "wire/vectors/questions.json").readBytes()), "questions.json")
    private val nowS = 1_800_000_000.0

    private fun Fields.objects(key: String): List<Fields> = list(key) { it, path -> Fields(it, path) }

    private fun Fields.question() = Question(double("begin_s"), double("end_s"), positive("windows"), string("label"))

    private fun Fields.activity() = Activity(double("begin_s"), double("last_s"), positive("windows"), count("number").toInt())

    private fun text(it: Question?) = it?.run { "$beginS $endS $windows $label" }

    private fun text(it: Activity) = it.run { "$beginS $lastS $windows $number" }

    @Test
    fun `activities of a stream are those of every implementation`() {
        val cases = Fields(JsonObject(mapOf("cases" to parseJson(File(repository, "wire/vectors/stream.json").readBytes()))), "stream.json")
        val expected = vectors.list("streams") { each, path -> Fields(JsonObject(mapOf("activities" to each)), path).objects("activities") }
        for ((case, activities) in cases.objects("cases").zip(expected)) {
            val followed = ArrayList<Activity>()
            val filter = StreamFilter(StreamSums("b", case.double("stays"), case.double("changes")), case.double("step_s")) { followed += it }
            for (step in case.objects("steps")) {
                val p = step.list("p") { it: Json, at -> Fields(JsonObject(mapOf("n" to it)), at).double("n").toFloat() }
                filter.answer(step.double("begin_s"), p.toFloatArray())
            }
            filter.answer(0.0, FloatArray(2)) // no answer, as a gap
            assertEquals(activities.map { text(it.activity()) }, followed.map(::text))
        }
    }

    @Test
    fun `long activities are those of every implementation`() {
        val classes = listOf("rest", "walking", "stairs", "l\u00e4uft")
        val cases = vectors.objects("long")
        for (case in cases) {
            val sums = StreamSums("b", case.double("stays"), case.double("changes"))
            val question = questionOf(case.obj("activity").activity(), sums, classes, case.double("length_s"))
            assertEquals(text(case.objectOrNull("question") { it.question() }), text(question))
        }
        assertTrue(cases.any { it.objectOrNull("question") { true } == true })
    }

    @Test
    fun `the question that is due is that of every implementation`() {
        val cases = vectors.objects("due")
        for (case in cases) {
            val stretches = case.objects("stretches").map { it.question() }
            val lastS = case.doubleOrNull("last_s", "a number") { true }
            val due = dueQuestion(stretches.asSequence(), lastS, case.count("most_a_day").toInt(), case.double("now_s"))
            assertEquals(case.intOrNull("due", 0L..1000L), due?.let { stretches.indexOf(it).toLong() })
        }
        assertTrue(cases.mapNotNull { it.intOrNull("due", 0L..1000L) }.toSet().size > 2)
    }

    private fun predictor() = Predictor(FolderStorage(folder), FakeLoader, emptyList())

    private object FakeLoader : GraphLoader {
        override val runtime = "none"

        override fun load(bundle: io.shoal.core.wire.Bundle): Graphs = throw AssertionError("no program is loaded")
    }

    @Test
    fun `a restart asks nothing twice, and what was learnt here goes`() {
        val stretches = listOf(9000, 5000, 1000).map { Question(nowS - it - 100, nowS - it, 50, "walking") }
        FolderStorage(folder).saveQuestions(Questions(stretches))
        assertNull(predictor().takeQuestion(3, nowS), "there is no model")
        FolderStorage(folder).saveCurrent(Current("b".repeat(64), "c".repeat(64), "r", emptyMap(), 2))
        assertNull(predictor().takeQuestion(0, nowS))
        assertNull(predictor().takeQuestion(3, nowS) { true }, "they have labels")
        assertEquals(text(stretches[1]), text(predictor().takeQuestion(3, nowS) { it.beginS != stretches[1].beginS }))
        assertNull(predictor().takeQuestion(3, nowS + 60))
        assertNull(predictor().takeQuestion(3, nowS + 28_800), "all of them ended before the last question")
        val later = Question(nowS + 100, nowS + 200, 50, "rest")
        FolderStorage(folder).run { saveQuestions(questions().add(later)) }
        assertEquals(text(later), text(predictor().takeQuestion(3, nowS + 28_800)))
        File(folder, "questions.json").appendText("x")
        assertEquals(0, FolderStorage(folder).questions().stretches.size)
        FolderStorage(folder).saveQuestions(Questions(stretches, nowS))
        FolderStorage(folder).erase()
        assertNull(FolderStorage(folder).questions().lastS)
    }
}
