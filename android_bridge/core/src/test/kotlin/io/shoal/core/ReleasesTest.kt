package io.shoal.core

import io.shoal.core.wire.Bundle
import io.shoal.core.wire.Fields
import io.shoal.core.wire.InUse
import io.shoal.core.wire.Json
import io.shoal.core.wire.JsonObject
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.Policy
import io.shoal.core.wire.Train
import io.shoal.core.wire.decode
import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.digest
import io.shoal.core.wire.encodeTensors
import io.shoal.core.wire.parseJson
import org.junit.jupiter.api.io.TempDir
import java.io.File
import java.io.IOException
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue

/** Releases: the model that answers, whatever comes, and the device's report. */
class ReleasesTest {
    @TempDir
    lateinit var folder: File

    private fun storage() = FolderStorage(folder)

    private fun device(loader: GraphLoader = FakeLoader(), policy: Policy? = null, windows: Windows = Fixture.windows) =
        FakeAggregator(storage(), loader = loader, policy = policy, windows = windows).up()

    private fun model(value: Float): ByteArray = encodeTensors(
        decodeTensors(Fixture.model).tensors.mapValues { (_, it) -> Tensor.of(FloatArray(it.size) { value }, it.shape) },
    )

    private fun FakeAggregator.release(number: Long, model: ByteArray = Fixture.model, epoch: Long = 5) {
        blobs += model
        deliver(topics.device("phone", "release"), Fixture.release(number, model, epoch = epoch))
        offer()
    }

    private fun FakeAggregator.report(): InUse = decode(sent("in-use").last())

    private val numTest = Fixture.windows.numTest.toLong()

    @Test
    fun `a release answers, and the device says so, also after a restart`() {
        val device = device()
        assertEquals(InUse("phone"), device.report())
        device.release(3)
        val report = device.report()
        assertEquals(listOf(3L, 3L, "", 0L), listOf(report.number, report.offered, report.problem, report.failures))
        assertEquals(digest(Fixture.model), report.model)
        assertEquals(Pair(Metrics(), numTest), Pair(report.before, report.evaluated.numExamples))
        assertTrue(report.evaluated.lossSum > 0 && report.latencyMs >= 0)
        assertEquals(Pair(3L, "left"), storage().current()!!.let { Pair(it.release, it.group) })
        assertEquals(report, device().report())
    }

    @Test
    fun `the one in use is evaluated on the same windows`() {
        val device = device()
        device.release(1)
        val first = device.report()
        device.release(2, model(2f))
        assertEquals(first.evaluated, device.report().before)
    }

    @Test
    fun `a release that is no newer changes nothing, and an older model under a higher number is taken`() {
        val device = device()
        device.release(5)
        for ((number, epoch) in listOf(4L to 5L, 5L to 6L, 6L to 4L)) device.release(number, model(2f), epoch)
        assertEquals(digest(Fixture.model), storage().current()!!.model)
        device.release(6, model(2f))
        device.release(7)
        assertEquals(Pair(7L, digest(Fixture.model)), storage().current()!!.let { Pair(it.release, it.model) })
        assertEquals(digest(model(2f)), storage().before()!!.model)
    }

    /** Graphs that are sure of class 0 if the weights of the model are 2, and undecided if not. */
    private val sure = object : GraphLoader by FakeLoader() {
        override fun load(bundle: Bundle): Graphs = object : Graphs by FakeGraphs() {
            override fun run(graph: String, inputs: Tensors): Tensors {
                if (graph != "predict") return FakeGraphs().run(graph, inputs)
                val row = if (inputs.getValue("shared/w").toFloatArray()[0] == 2f) listOf(1f, 0f, 0f) else listOf(0.4f, 0.3f, 0.3f)
                val count = inputs.getValue("batch/x").rows
                return mapOf("output/probabilities" to Tensor.of(List(count) { row }.flatten().toFloatArray(), listOf(count, 3)))
            }
        }
    }

    /** Return windows to test on, all of this class, that begin from [beginS] on. */
    private fun tested(label: Long, beginS: Double, count: Int = 12) = Fixture.windows.run {
        Windows(trainX, trainY, trainX.take(IntArray(count) { it }), Tensor.of(LongArray(count) { label }), unlabelledX, names, DoubleArray(count) { beginS + it })
    }

    private val later = 2000.0

    /** Let the device take two releases, the second of which is sure of class 0. */
    private fun takeTwo() = device(sure).run {
        release(1)
        release(2, model(2f))
    }

    @Test
    fun `a device goes back to the model before if fresh windows say so, and forward by the same rule`() {
        takeTwo()
        val back = device(sure, windows = tested(1, later))
        back.work()
        assertEquals(1, storage().current()!!.release)
        back.report().run {
            assertEquals(listOf(1L, 2L, digest(Fixture.model)), listOf(number, offered, model))
            assertTrue("went back from model ${digest(model(2f)).take(12)}" in problem && "12 held-out windows" in problem, problem)
        }
        repeat(2) { device(sure, windows = tested(1, later)).work() }
        assertEquals(Pair(1L, 2L), storage().run { Pair(current()!!.release, before()!!.release) }, "another look finds the same")
        val forward = device(sure, windows = tested(0, later))
        forward.work()
        assertEquals(listOf(2L, ""), forward.report().run { listOf(number, problem) })
        forward.release(3, model(3f))
        assertEquals(3, forward.report().number)
    }

    @Test
    fun `windows that are few, old, or that nobody may evaluate decide nothing`() {
        takeTwo()
        val rules = listOf(Policy(minWindows = 13), Policy(verbs = listOf("train")))
        val devices = listOf(tested(1, later, 7), tested(1, 0.0), tested(1, Double.NaN)).map { device(sure, windows = it) } +
            rules.map { device(sure, it, tested(1, later)) }
        for (device in devices) {
            device.work()
            assertEquals(2, storage().current()!!.release)
        }
    }

    @Test
    fun `gains and their errors are those of every implementation`() {
        val file = Fields(JsonObject(mapOf("cases" to parseJson(File(repository, "wire/vectors/comparison.json").readBytes()))), "comparison.json")
        val cases = file.list("cases") { it: Json, path -> Fields(it, path) }
        assertTrue(cases.size >= 5)
        for (case in cases) {
            val (used, other) = listOf("used", "other").map { key ->
                case.list(key) { it, at -> Fields(JsonObject(mapOf("n" to it)), at).double("n") }.toDoubleArray()
            }
            val (gain, error) = Trial.gain(used, other)
            assertEquals(case.double("gain"), gain, 1e-8)
            assertEquals(case.double("error"), error, 1e-8)
        }
    }

    @Test
    fun `one that fails is said, and the one before stays`() {
        val device = device()
        device.release(1)
        device.release(2, ByteArray(100))
        val report = device.report()
        assertEquals(Pair(1L, 2L), Pair(report.number, report.offered))
        assertTrue(report.problem.isNotEmpty())
        device.release(3, model(2f))
        assertEquals(3, device.report().number)
    }

    @Test
    fun `one that ends the client is given up and said`() {
        device().release(1)
        // Whatever is thrown while an offer is tried becomes a reason; only the end of the process does not. The session says how often it began.
        val storage = storage()
        val began = Offers.onRelease(storage.session(), Fixture.release(2, model(2f)))
        storage.putBlob(digest(model(2f)), model(2f))
        storage.save((1..Rounds.MOST_TRIES).fold(began) { session, _ -> Offers.onTrying(session) })
        val device = device()
        device.work()
        val report = device.report()
        assertEquals(Pair(1L, 2L), Pair(report.number, report.offered))
        assertTrue("ended this client" in report.problem)
        val again = device()
        again.work()
        assertEquals(report, again.report(), "what was given up is not tried again")
    }

    @Test
    fun `a finish beside releases offers nothing`() {
        val device = device()
        device.release(1)
        device.blobs += model(2f)
        device.reply(Fixture.finish(run = "next", epoch = 6, model = model(2f)).copy(releases = true))
        device.offer()
        assertEquals(digest(Fixture.model), storage().current()!!.model)
    }

    @Test
    fun `an old finish again changes nothing, also after a restart`() {
        val (old, new) = Pair(model(2f), model(3f))
        val first = device()
        first.blobs += listOf(old, new)
        for ((number, model) in listOf(1L to old, 2L to new)) {
            first.reply(Fixture.finish(run = "run-$number", model = model, number = number))
            first.offer()
        }
        for (device in listOf(first, device())) {
            device.blobs += old
            device.reply(Fixture.finish(run = "run-1", model = old, number = 1))
            device.offer()
            assertEquals(digest(new), storage().current()!!.model)
        }
        assertEquals(Pair(0L, 2L), device().report().let { Pair(it.number, it.offered) })
    }

    @Test
    fun `the owner may forbid the evaluation`() {
        val device = device(policy = Policy(minWindows = numTest + 1))
        device.release(1)
        assertEquals(Pair(1L, Metrics()), device.report().let { Pair(it.number, it.evaluated) })
    }

    @Test
    fun `without test windows nothing is measured, whatever a plan held out`() {
        val all = Fixture.windows
        val none = IntArray(0)
        val device = device(windows = Windows(all.trainX, all.trainY, all.testX.take(none), all.testY.take(none)))
        device.release(1)
        device.plan(Fixture.plan(verbs = listOf(Train(8, holdout = 0.25))))
        device.offer()
        device.release(2, model(2f))
        assertEquals(listOf(2L, "", Metrics(), Metrics()), device.report().run { listOf(number, problem, evaluated, before) })
    }

    @Test
    fun `a phone without any window takes a release, and says that nothing was measured`() {
        val device = device(windows = noWindows())
        device.release(1)
        assertEquals(listOf(1L, "", Metrics(), Metrics()), device.report().run { listOf(number, problem, evaluated, before) })
        assertTrue(device.log.any { "tried on zeros: this device has no window" in it })
    }

    private fun noWindows(): Windows {
        val (x, y) = Fixture.windows.let { Pair(it.trainX.take(IntArray(0)), it.trainY.take(IntArray(0))) }
        return Windows(x, y, x, y)
    }

    @Test
    fun `what was in the way has passed with the next job`() {
        val failing = object : GraphLoader by FakeLoader() {
            override fun load(bundle: Bundle): Graphs = throw OutOfMemoryError("load")
        }
        val device = device(failing)
        device.release(1)
        val first = device.report()
        assertTrue("OutOfMemoryError" in first.problem)
        val second = device(failing)
        assertEquals(first, second.report(), "until it has been tried again")
        second.work()
        assertEquals(first, second.report())
        val third = device()
        third.work()
        assertEquals(listOf(1L, "", numTest), third.report().run { listOf(number, problem, evaluated.numExamples) })
    }

    @Test
    fun `a disk that is full is no try`() {
        var full = true
        val storage = object : Storage by FolderStorage(folder) {
            override fun saveCurrent(current: Current) = if (full) throw IOException("full") else storage().saveCurrent(current)
        }
        storage().putBlob(Fixture.bundle.digest, Fixture.payload)
        storage().putBlob(digest(Fixture.model), Fixture.model)
        storage().save(Offers.onRelease(Session(), Fixture.release(1)))
        repeat(Rounds.MOST_TRIES + 1) { assertFailsWith<IOException> { FakeAggregator(storage).up().work() } }
        full = false
        val device = FakeAggregator(storage).up()
        device.work()
        assertEquals(listOf(1L, ""), device.report().run { listOf(number, problem) })
    }

    @Test
    fun `the model in use never goes away, and the one before answers for a damaged one`() {
        val device = device()
        device.release(1)
        device.release(2, model(2f))
        File(folder, "current").writeBytes(ByteArray(50))
        assertEquals(1, storage().current()!!.release)
        device().release(3, model(3f))
        File(folder, "blobs/${digest(model(3f))}").delete()
        Predictor(storage(), FakeLoader(), Fixture.keys).use { it.predict(Fixture.windows.testX) }
        assertEquals(1, storage().failures())
    }

    @Test
    fun `predictions that fail are counted until another model is in use`() {
        device().release(1)
        val failing = object : GraphLoader by FakeLoader() {
            override fun load(bundle: Bundle): Graphs = throw UnsatisfiedLinkError("load")
        }
        Predictor(storage(), failing, Fixture.keys).use { predictor ->
            repeat(2) { assertFailsWith<UnsatisfiedLinkError> { predictor.predict(Fixture.windows.testX) } }
        }
        val device = device()
        assertEquals(2, device.report().failures)
        device.release(2, model(2f))
        assertEquals(0, device.report().failures)
    }

    @Test
    fun `an application is told that another model answers`() {
        val released = ArrayList<Long>()
        device().release(1)
        Predictor(storage(), FakeLoader(), Fixture.keys) { released += it.release }.use { predictor ->
            predictor.predict(Fixture.windows.testX)
            device().release(2, model(2f))
            repeat(2) { predictor.predict(Fixture.windows.testX) }
            assertEquals(2, predictor.current!!.release)
        }
        assertEquals(listOf(2L), released)
    }

    @Test
    fun `long stretches that a stream was answered with are remembered if they may be`() {
        device().release(1)
        val (bundle, x) = Pair(storage().current()!!.bundle, Fixture.windows.testX.take(intArrayOf(0)))
        for (remembers in listOf(false, true)) {
            storage().saveStream(StreamSums(bundle, 900.0, 100.0))
            Predictor(storage(), FakeLoader(), Fixture.keys, { remembers }).use { predictor ->
                repeat(100) { predictor.predictNext(x, 1000 + it * 2.0) }
                predictor.predictNext(x, 5000.0)
            }
            assertEquals(if (remembers) listOf(100L) else emptyList(), storage().questions().stretches.map { it.windows })
        }
    }
}
