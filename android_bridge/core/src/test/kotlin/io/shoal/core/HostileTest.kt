package io.shoal.core

import io.shoal.core.wire.Acknowledge
import io.shoal.core.wire.Annotate
import io.shoal.core.wire.Apply
import io.shoal.core.wire.Bundle
import io.shoal.core.wire.Choose
import io.shoal.core.wire.Evaluate
import io.shoal.core.wire.Finish
import io.shoal.core.wire.Names
import io.shoal.core.wire.Pieces
import io.shoal.core.wire.Plan
import io.shoal.core.wire.Policy
import io.shoal.core.wire.Protect
import io.shoal.core.wire.Respond
import io.shoal.core.wire.Train
import io.shoal.core.wire.Verb
import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.decodeUpdate
import io.shoal.core.wire.digest
import io.shoal.core.wire.encode
import io.shoal.core.wire.encodeTensors
import org.junit.jupiter.api.io.TempDir
import java.io.File
import java.io.IOException
import java.util.Random
import kotlin.math.sqrt
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertTrue

/**
 * Hostile plans, bundles and models, from an attacker who has a key or whom the device believes
 * without one, and runtimes that fail in every way. The device must survive, accept a good plan
 * afterwards, and let nothing leave that its owner's policy forbids. The system property
 * `shoal.hostile` is their number; the default takes some twenty seconds.
 */
class HostileTest {
    @TempDir
    lateinit var folder: File

    private val random = Random(System.getProperty("shoal.seed").orEmpty().ifEmpty { "1" }.toLong())
    private val count = System.getProperty("shoal.hostile").orEmpty().ifEmpty { "3000" }.toInt()
    private val clipNorm = 0.5
    private val policy = Policy(maxClipNorm = clipNorm, maxEpochs = 30.0)

    /** Storage without a disk: writing would take hours with so many plans. */
    private class Memory : Storage {
        var stored = Session()
        var started = Start()
        val blobs = HashMap<String, ByteArray>()
        val private = HashMap<Pair<String, Long>, Tensors>()
        var update: ByteArray? = null
        var written: ByteArray? = null
        var used: Current? = null
        var hours: Map<Long, Long> = emptyMap()

        override fun session() = stored

        override fun stream(bundle: String) = StreamSums(bundle)

        override fun saveStream(sums: StreamSums) = Unit

        override fun questions() = Questions()

        override fun saveQuestions(questions: Questions) = Unit

        override fun answers() = null

        override fun saveAnswers(payload: ByteArray) = Unit

        override fun surveys() = null

        override fun saveSurveys(payload: ByteArray) = Unit

        override fun checkpoint() = written

        override fun putCheckpoint(payload: ByteArray) {
            written = payload
        }

        override fun dropCheckpoint() {
            written = null
        }

        override fun save(session: Session) {
            stored = decodeSession(encodeSession(session))
        }

        override fun start() = started

        override fun saveStart(start: Start) {
            started = start
        }

        override fun blob(digest: String) = blobs[digest]

        override fun putBlob(digest: String, payload: ByteArray) {
            blobs[digest] = payload
        }

        override fun part(pieces: Pieces) = throw IOException("no pieces here")

        override fun finish(part: BlobPart) = false

        override fun updateSize() = (update?.size ?: 0).toLong()

        override fun updatePart(offset: Long, size: Int) = update!!.copyOfRange(offset.toInt(), offset.toInt() + size)

        override fun keepBlobs(digests: Set<String>) {
            blobs.keys.retainAll(digests)
        }

        override fun putUpdate(runId: String, round: Long, payload: ByteArray, private: Tensors) {
            this.private.keys.removeAll { it.second < round - 1 }
            this.private[runId to round] = private
            update = payload
        }

        override fun update() = update

        override fun dropUpdate() {
            update = null
        }

        override fun private(runId: String, round: Long): Tensors =
            private.entries.filter { it.key.first == runId && it.key.second < round }.maxByOrNull { it.key.second }?.value.orEmpty()

        override fun current() = used

        override fun before(): Current? = null

        override fun saveCurrent(current: Current) {
            used = current
        }

        override fun failures() = 0L

        override fun saveFailures(count: Long) = Unit

        override fun traffic() = hours

        override fun saveTraffic(hours: Map<Long, Long>) {
            this.hours = hours
        }
    }

    /** Fake graphs that sometimes throw an error or have a wrong output. */
    private inner class Hostile : GraphLoader by FakeLoader() {
        override fun load(bundle: Bundle): Graphs {
            if (random.nextInt(40) == 0) throw thrown()
            val graphs = FakeGraphs(if (random.nextInt(10) == 0) 1 + random.nextInt(9) else null)
            return object : Graphs by graphs {
                override fun run(graph: String, inputs: Tensors): Tensors = when (random.nextInt(300)) {
                    0 -> throw thrown()
                    1 -> emptyMap()
                    2 -> graphs.run(graph, inputs).mapKeys { "next/shared/${random.nextInt(3)}" }
                    3 -> graphs.run(graph, inputs).mapValues { Tensor.of(FloatArray(random.nextInt(5)) { odd() }) }
                    4 -> graphs.run(graph, inputs).mapValues { (_, it) -> Tensor.of(FloatArray(it.size) { odd() }, it.shape) }
                    5 -> graphs.run(graph, inputs) + ("metric/leak" to (inputs["shared/w"] ?: Tensor.scalar(1f)))
                    else -> graphs.run(graph, inputs)
                }
            }
        }
    }

    private fun odd() = listOf(Float.NaN, Float.POSITIVE_INFINITY, -1f, 1e30f, 0.25f, 7f)[random.nextInt(6)]

    private fun thrown(): Throwable = listOf(
        { OutOfMemoryError() }, { StackOverflowError() }, { UnsatisfiedLinkError() }, { ExceptionInInitializerError() }, { RuntimeException("\n") },
        { IllegalArgumentException() }, { BundleException("bad") }, { DataException("bad") }, { java.io.IOException("bad") }, { Error() },
    ).let { it[random.nextInt(it.size)]() }

    private fun graph() = listOf("step", "step", "evaluate", "survey", "weigh", "double", "predict", "places", "shift", "none")[random.nextInt(10)]

    private fun verb(): Verb = when (random.nextInt(10)) {
        0, 1, 2 -> Train(
            2 + random.nextInt(60),
            1 + random.nextInt(3),
            listOf(null, null, 1L, 9L, 1L shl 31)[random.nextInt(5)],
            mapOf("lr" to random.nextGaussian()),
            if (random.nextInt(3) == 0) graph() else "step",
            random.nextInt(4) > 0,
            listOf(0.0, 0.3, 0.999)[random.nextInt(3)],
            listOf(0L, 0L, 35L)[random.nextInt(3)],
        )
        3, 4 -> Evaluate(
            listOf("train", "test", "holdout", "windows", "unlabelled", "inputs")[random.nextInt(6)],
            graph(),
            listOf("received", "initial")[random.nextInt(2)],
            listOf(0.0, 0.1)[random.nextInt(2)],
            random.nextBoolean(),
            listOf(0L, 3L, 1L shl 40)[random.nextInt(3)],
        )
        5 -> Choose(List(1 + random.nextInt(3)) { digest(blobs[random.nextInt(blobs.size)]) }, graph())
        6 -> Annotate(graph(), listOf("weight", "weight", "x", "y")[random.nextInt(4)])
        7 -> Apply(graph(), random.nextBoolean())
        8 -> Respond(digest(blobs[random.nextInt(blobs.size)]), graph())
        else -> protect()
    }

    private fun protect() = Protect(listOf(1e-30, 0.1, clipNorm, clipNorm, 2.0, 1e300)[random.nextInt(6)], listOf(0.0, 0.0, 0.1, 1e300)[random.nextInt(4)])

    /** Bundles and models, intact and changed at random. */
    private val blobs: List<ByteArray> by lazy {
        val good = listOf(Fixture.payload, Fixture.model)
        val tensors = decodeTensors(Fixture.model).tensors
        val odd = listOf(
            tensors - "shared/w", tensors + ("shared/w" to Tensor.scalar(1f)), emptyMap(), mapOf("x" to Fixture.windows.testX),
            mapOf("x" to Tensor.of(FloatArray(0), listOf(0, 2, 4))), tensors.mapValues { (_, it) -> Tensor.of(FloatArray(it.size) { odd() }, it.shape) },
        ).map { encodeTensors(it) }
        good + good + odd + List(60) { changed(good[it % 2]) } + listOf(encrypted(), ByteArray(0))
    }

    private fun changed(original: ByteArray): ByteArray {
        val bytes = original.copyOf(if (random.nextInt(3) == 0) random.nextInt(original.size) else original.size)
        repeat(1 + random.nextInt(6)) { if (bytes.isNotEmpty()) bytes[random.nextInt(bytes.size)] = random.nextInt(256).toByte() }
        return bytes
    }

    /** Return the bundle with the flag of encrypted files. */
    private fun encrypted(): ByteArray = Fixture.payload.copyOf().also { zip ->
        for (at in 0 until zip.size - 9) if (zip[at] == 'P'.code.toByte() && zip[at + 1] == 'K'.code.toByte() && zip[at + 2] == 1.toByte()) zip[at + 8] = 1
    }

    private fun plan(round: Long): Plan {
        val verbs = List(random.nextInt(5)) { verb() } + (if (random.nextInt(2) == 0) listOf(protect()) else emptyList())
        val plan = Fixture.plan(round, verbs = verbs, epoch = 5 + round / 100, deadlineAtS = if (random.nextInt(30) == 0) 1.0 else 1e9)
        return when (random.nextInt(4)) {
            0 -> plan.copy(bundle = digest(blobs[random.nextInt(blobs.size)]))
            1 -> plan.copy(model = digest(blobs[random.nextInt(blobs.size)]))
            else -> plan
        }
    }

    @Test
    fun `whatever a plan, a bundle, a model or a runtime does, the device lives and keeps its policy`() {
        val storage = Memory()
        var device = believing(storage)
        var round = 0L
        val seen = HashMap<String, Int>()
        repeat(count) { turn ->
            if (turn % 50 == 0) device = believing(storage).up(status = false).also { it.clock.steadyS += 4 }
            val plan = plan(++round)
            device.unsigned(device.topics.device("phone", "plan"), plan)
            if (random.nextInt(20) == 0) device.agent.handle(Delivery(device.topics.device("phone", "plan"), changed(encode(plan))))
            device.offer()
            if (random.nextInt(10) == 0) {
                val offered = Finish("phone", "run", plan.epoch, plan.bundle, plan.model, number = round)
                device.unsigned(device.topics.device("phone", "reply"), offered)
                device.offer()
            }
            for (decline in device.declines()) seen.merge(decline.reason.text, 1, Int::plus)
            for (payload in device.sent("update")) {
                seen.merge("update", 1, Int::plus)
                checkProtected(payload)
                device.unsigned(device.topics.device("phone", "reply"), Acknowledge("phone", digest(payload)))
            }
            device.link.published.clear()
            device.log.clear()
        }
        val good = FakeAggregator(storage, emptyList(), policy).up(status = false).also { it.clock.steadyS += 4 }
        good.unsigned(good.topics.device("phone", "plan"), Fixture.plan(round + 1, epoch = 5L + count, verbs = listOf(Train(8), Protect(clipNorm))))
        good.offer()
        assertEquals(emptyList(), good.declines())
        assertEquals(1, good.sent("update").size, "a good plan is carried out after all that")
        storage.used?.let { assertEquals(Pair(digest(Fixture.payload), 3), Pair(it.bundle, Bundle.unpack(storage.blobs.getValue(it.bundle)).manifest.classes.size)) }
        println("of $count hostile plans: ${seen.toSortedMap()}")
        assertTrue(seen.getValue("update") > count / 50 && seen.getValue("policy") > count / 10, "$seen")
        assertTrue(seen.keys.containsAll(listOf("bundle", "data", "failed")), "$seen")
    }

    private fun believing(storage: Storage) =
        FakeAggregator(storage, emptyList(), policy, Hostile()).apply { blobs += this@HostileTest.blobs }

    /**
     * Check that an update has no result of training that was not clipped, and nothing that the
     * bundle does not declare.
     */
    private fun checkProtected(payload: ByteArray) {
        val (update, tensors) = decodeUpdate(payload)
        val deltas = Names.part(tensors, "delta").values
        val norm = sqrt(deltas.sumOf { tensor -> tensor.toFloatArray().sumOf { it.toDouble() * it } })
        assertTrue(norm <= clipNorm || update.trained.numExamples == 0L || noisy(deltas), "a change of norm $norm left")
        assertTrue(tensors.keys.none { "leak" in it })
        if (update.trained.numExamples > 0 && deltas.isNotEmpty()) {
            assertTrue(tensors.keys.none { Names.roleOf(it) == Names.RESPONSE && "survey" !in it && "double" !in it && "predict" !in it && "places" !in it && "shift" !in it })
        }
    }

    /**
     * Length of the test's noise, which is 0.25 standard deviations everywhere: with it a change is
     * longer than the clipping norm.
     */
    private fun noisy(deltas: Collection<Tensor>) = deltas.all { tensor -> tensor.toFloatArray().all { it != 0f } }

    @Test
    fun `what bricked a device is a decline`() {
        val device = FakeAggregator(FolderStorage(folder)).up()
        device.blobs += blobs
        val truncated = Fixture.payload.copyOf(Fixture.payload.size / 2)
        device.blobs += truncated
        val plans = listOf(
            Fixture.plan(1, verbs = listOf(Train(8, graph = "predict"))),
            Fixture.plan(2, verbs = listOf(Train(8, graph = "none"))),
            Fixture.plan(3).copy(bundle = digest(encrypted())),
            Fixture.plan(4).copy(bundle = digest(truncated)),
        )
        for (plan in plans) {
            device.plan(plan)
            device.offer()
        }
        assertEquals(listOf("failed", "failed", "bundle", "bundle"), device.declines().map { it.reason.text })
        device.plan(Fixture.plan(5))
        device.offer()
        assertEquals(1, device.sent("update").size)
    }
}
