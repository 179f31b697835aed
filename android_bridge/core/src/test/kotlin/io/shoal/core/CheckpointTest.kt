package io.shoal.core

import io.shoal.core.random.Generator
import io.shoal.core.random.Noise
import io.shoal.core.wire.Apply
import io.shoal.core.wire.Evaluate
import io.shoal.core.wire.Fields
import io.shoal.core.wire.Plan
import io.shoal.core.wire.Train
import io.shoal.core.wire.decode
import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.messageOf
import io.shoal.core.wire.parseJson
import java.io.File
import java.util.Random
import kotlin.test.Test
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue

/**
 * Work that is ended at any place resumes there, with the same bits; anything else in place of a
 * checkpoint is refused.
 */
class CheckpointTest {
    /** Simulated end of the process. */
    private class EndedException : RuntimeException()

    private class Case(val plan: Plan, val before: Tensors)

    private val cases by lazy {
        File(Fixture.folder, "cases").listFiles()!!.sorted().map { case ->
            Case(decode(File(case, "plan.json").readBytes()), decodeTensors(File(case, "before.safetensors").readBytes()).tensors)
        }
    }

    private fun tensors(name: String) = decodeTensors(Fixture.blob(name)).tensors

    /**
     * Noise that is always the same: a checkpoint does not have the state of a device's private
     * noise.
     */
    private fun executor() = Executor(Fixture.bundle, FakeGraphs(), Fixture.windows, Noise { 0.25 })

    private fun run(case: Case, executor: Executor = executor(), resumed: Checkpoint? = null, between: () -> Unit = {}): PlanResult =
        executor.execute(case.plan, tensors(case.plan.model), case.before, ::tensors, { _, _ -> }, resumed, between)

    private fun basis(plan: Plan) = Basis(1, "shoal", "fake", workDigest(plan), "0".repeat(64))

    /**
     * Return the checkpoint of work that is ended before run number [at], or null if it is finished
     * before.
     */
    private fun endedAt(case: Case, at: Int, resumed: Checkpoint? = null): ByteArray? {
        val executor = executor()
        var written: ByteArray? = null
        var runs = 0
        try {
            run(case, executor, resumed) {
                if (runs++ == at) {
                    written = encodeCheckpoint(basis(case.plan), executor.checkpoint(1.5))
                    throw EndedException()
                }
            }
        } catch (_: EndedException) {
            return written
        }
        return null
    }

    private fun outputsOf(result: PlanResult) =
        listOf(result.model, "${result.evaluated}", "${result.trained}", result.numSteps, result.tensors, result.private)

    @Test
    fun `work that ends at any run of a graph goes on with the same bits`() {
        var ends = 0
        for (case in cases) {
            val whole = outputsOf(run(case))
            var at = 0
            while (true) {
                val (_, checkpoint) = decodeCheckpoint(endedAt(case, at) ?: break)
                assertEquals(Pair(at.toLong(), 1.5), Pair(checkpoint.place.runs, checkpoint.place.seconds))
                assertEquals(whole, outputsOf(run(case, resumed = checkpoint)), "plan ${case.plan.round}, ended before run $at")
                at++
                ends++
            }
        }
        assertTrue(ends > 100, "$ends ends")
    }

    @Test
    fun `jobs of one batch each come to the end`() {
        for (case in cases) {
            var checkpoint: Checkpoint? = null
            while (true) {
                val before = checkpoint?.place?.runs ?: 0
                checkpoint = decodeCheckpoint(endedAt(case, 1, checkpoint) ?: break).second
                assertEquals(before + 1, checkpoint.place.runs)
            }
            assertEquals(outputsOf(run(case)), outputsOf(run(case, resumed = checkpoint)), "plan ${case.plan.round}")
        }
    }

    @Test
    fun `it reads what it wrote`() {
        for (case in cases) for (at in listOf(0, 3, 7)) {
            val written = endedAt(case, at) ?: continue
            val (basis, checkpoint) = decodeCheckpoint(written)
            assertContentEquals(written, encodeCheckpoint(basis, checkpoint))
        }
    }

    @Test
    fun `hostile bytes are refused or are a checkpoint that fits`() {
        val random = Random(3)
        val some = cases.filter { it.plan.verbs.isNotEmpty() }.flatMap { case -> listOf(0, 1, 2, 5).mapNotNull { at -> endedAt(case, at)?.let { case to it } } }
        var (refused, ran) = Pair(0, 0)
        repeat(3000) {
            val (case, whole) = some[random.nextInt(some.size)]
            var written = whole
            repeat(1 + random.nextInt(3)) {
                val at = random.nextInt(written.size)
                written = when (random.nextInt(4)) {
                    0 -> written.copyOf().also { it[at] = (it[at].toInt() xor (1 shl random.nextInt(8))).toByte() }
                    1 -> written.copyOf(maxOf(1, at))
                    2 -> written.copyOf(at) + ByteArray(random.nextInt(9)).also(random::nextBytes) + written.copyOfRange(at, written.size)
                    else -> written.copyOf(at) + listOf("9", "-", "null", "e9", "0").random(kotlin.random.Random(at)).toByteArray() +
                        written.copyOfRange(at + 1, written.size)
                }
            }
            try {
                var runs = 0
                run(case, resumed = decodeCheckpoint(written).second) { if (runs++ > 200) throw EndedException() }
                ran++
            } catch (_: ShoalException) {
                refused++
            } catch (_: EndedException) { // a count that grew: the work is long, not wrong
                ran++
            }
        }
        assertTrue(refused > 1000 && ran > 100, "$refused refused, $ran ran")
    }

    @Test
    fun `a checkpoint of other tensors, verbs or windows is unfit`() {
        val case = cases[1]
        val (_, checkpoint) = decodeCheckpoint(endedAt(case, 4)!!)
        fun like(tensors: Tensors = checkpoint.tensors, protected: Tensors = checkpoint.protected, place: Place = checkpoint.place, within: Within = checkpoint.within) =
            Checkpoint(place, tensors, checkpoint.sent, protected, checkpoint.evaluated, checkpoint.trained, within)
        val three = Tensor.of(FloatArray(3))
        val wrong = listOf(
            like(tensors = checkpoint.tensors + ("shared/w" to three)),
            like(tensors = checkpoint.tensors + ("shared/other" to three)),
            like(tensors = checkpoint.tensors + ("column/weight" to three)),
            like(protected = mapOf("shared/b" to Tensor.of(LongArray(3)))),
            like(place = checkpoint.place.copy(verb = 3)),
            like(place = checkpoint.place.copy(model = "0".repeat(64))),
            like(place = checkpoint.place.copy(changed = listOf("shared/none"))),
            like(within = checkpoint.within.copy().apply { order = IntArray(41) { it + 1 } }),
            like(within = checkpoint.within.copy().apply { order = IntArray(5) { it } }.also { it.batches = 1 }),
        )
        for (other in wrong) assertFailsWith<UnfitCheckpointException> { run(case, resumed = other) }
    }

    @Test
    fun `a checkpoint that lost what a later verb reads is unfit`() {
        val case = cases.first { (it.plan.verbs.getOrNull(1) as? Apply)?.graph == "shift" }
        val checkpoint = generateSequence(0) { it + 1 }.mapNotNull { endedAt(case, it) }.map { decodeCheckpoint(it).second }.first { it.place.verb == 1 }
        val lost = Checkpoint(checkpoint.place, checkpoint.tensors - "response/places.holdout", checkpoint.sent, checkpoint.protected, checkpoint.evaluated, checkpoint.trained, checkpoint.within)
        assertEquals(checkpoint.tensors.size - 1, lost.tensors.size)
        assertFailsWith<UnfitCheckpointException> { run(case, resumed = lost) }
    }

    private fun vectors(part: String) = Fields(parseJson(File(repository, "wire/vectors/checkpoint.json").readBytes()), "checkpoint.json")
        .list(part) { it, path -> Fields(it, path) }.also { assertTrue(it.size >= 8) }

    @Test
    fun `the rules are those of every implementation`() {
        for (case in vectors("usable")) {
            assertEquals(case.bool("used"), unusable(basisOf(case.obj("stored")), basisOf(case.obj("now"))).isEmpty(), case.string("name"))
        }
        for (case in vectors("plans")) {
            val (one, other) = listOf("plan", "other").map { messageOf(case.obj(it)) as Plan }
            assertEquals(case.bool("same"), workDigest(one) == workDigest(other), case.string("name"))
        }
    }

    @Test
    fun `random numbers go on from the states of every implementation`() {
        for (case in vectors("random")) {
            val seeds = case.list("seeds") { it, path -> Fields.countOf(it, path) }
            val drawn = Generator(*seeds.toLongArray())
            for (draw in case.string("drawn")) if (draw == 'p') drawn.permutation(9) else drawn.floats(3)
            val state = randomOf(case.obj("state"))
            assertEquals(state, drawn.state())
            val generator = Generator(*seeds.toLongArray()).apply { put(state) }
            assertEquals(case.list("permutation") { it, path -> Fields.countOf(it, path).toInt() }, generator.permutation(11).toList())
            val floats = case.list("floats") { it, _ -> (it as io.shoal.core.wire.JsonNumber).text.toDouble().toFloat() }
            assertEquals(floats, generator.floats(3).toList())
        }
    }

    @Test
    fun `windows are known by every bit`() {
        val (x, y) = Pair(Tensor.of(FloatArray(6), listOf(3, 1, 2)), Tensor.of(LongArray(3)))
        val moved = Tensor.of(FloatArray(6).also { it[5] = -0.0f }, listOf(3, 1, 2))
        val two = Windows(x.take(intArrayOf(0, 1)), y.take(intArrayOf(0, 1)), x, y)
        val seen = listOf(
            Windows(x, y, x, y), Windows(moved, y, x, y), Windows(x, y, moved, y), Windows(x, Tensor.of(longArrayOf(0, 0, 1)), x, y), two,
            Windows(x, y, x, y, x),
        )
        assertEquals(6, seen.map(::windowsDigest).toSet().size)
        assertEquals(windowsDigest(seen[0]), windowsDigest(Windows(x, y, x, y)))
    }

    @Test
    fun `a pause is twenty times what the last checkpoint took`() {
        assertEquals(30.0, Pace().pauseS(0.1))
        assertEquals(120.0, Pace().pauseS(6.0))
    }

    @Test
    fun `its size is that of what the plan has changed`() {
        val case = Case(Fixture.plan(verbs = listOf(Train(8), Evaluate())), emptyMap())
        val written = endedAt(case, 3)!!
        val (_, checkpoint) = decodeCheckpoint(written)
        assertEquals(setOf("shared/w", "shared/b", "statistic/n.running_mean", "statistic/n.running_var", "private/p", "slot/m"), checkpoint.tensors.keys)
        val numbers = (checkpoint.tensors.values + checkpoint.sent.values).sumOf { it.data.limit() } + 8 * checkpoint.within.order!!.size
        assertTrue(written.size < numbers + 4096, "${written.size} bytes for $numbers of numbers")
    }
}
