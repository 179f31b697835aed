package io.shoal.android

import io.shoal.android.FleetState.Blocked
import io.shoal.android.FleetState.Waiting
import io.shoal.core.ConfigException
import io.shoal.core.Current
import io.shoal.core.LinkException
import io.shoal.core.Log
import io.shoal.core.Question
import io.shoal.core.Questions
import io.shoal.core.Session
import io.shoal.core.Tensor
import io.shoal.core.wire.Metrics
import org.junit.jupiter.api.io.TempDir
import java.io.File
import java.io.IOException
import java.security.KeyStore
import java.util.concurrent.CountDownLatch
import kotlin.concurrent.thread
import kotlin.concurrent.withLock
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertFalse
import kotlin.test.assertIs
import kotlin.test.assertNull
import kotlin.test.assertTrue

class FleetTest {
    @TempDir
    lateinit var root: File

    private var platform = FakePlatform()

    /** Return the fleet of a process that has just started. */
    private fun started(name: String = "f"): Fleet {
        platform = FakePlatform(TestKeys(File(root, "keys")))
        return Fleet(name, Home.of(root, name), platform, Log.SILENT)
    }

    private fun configured(name: String = "f"): Fleet = started(name).also { fleet ->
        fleet.configure(FleetBuilder(name).broker("mqtt://b").windows(HomeTest.Source::class.java).allowInsecure().build())
        platform.write()
    }

    @Test
    fun `without consent no job is planned, and with it jobs are, also after a restart`() {
        val fleet = configured()
        fleet.requestTraining()
        assertEquals(emptyList(), platform.requests.toList())
        assertEquals(Blocked.Reason.CONSENT, assertIs<Blocked>(fleet.state).reason)
        fleet.consent.grant("terms-3")
        platform.write()
        fleet.requestTraining()
        assertEquals(listOf("jobs", "job"), platform.requests.toList())
        assertIs<FleetState.Idle>(fleet.state)
        assertEquals("terms-3", configured().consent.version)
        assertEquals(listOf("jobs"), platform.requests.toList())
        assertNull(configured("g").consent.version, "each fleet is agreed to by itself")
        assertFailsWith<IllegalArgumentException> { fleet.consent.grant("terms 3") }
    }

    @Test
    fun `a question needs consent and a model, and is not about a time with a label`() {
        val fleet = configured()
        val nowS = System.currentTimeMillis() / 1000.0
        val stretches = listOf(900, 600).map { Question(nowS - it, nowS - it + 120, 50, "walking") }
        fleet.storage().saveQuestions(Questions(stretches))
        fleet.storage().saveCurrent(Current("b".repeat(64), "c".repeat(64), "r", emptyMap(), 2))
        assertNull(fleet.takeQuestion(3), "nobody has consented")
        fleet.consent.grant("terms-1")
        platform.write()
        assertNull(fleet.takeQuestion(0))
        val untilMs = (1000 * (nowS - 800)).toLong()
        val hint = fleet.labels.add("walking", untilMs + 100_000, untilMs + 300_000, LabelSource.HINT)
        val label = fleet.labels.add("walking", untilMs - 1000, untilMs)
        platform.write()
        assertTrue(hint.get() && label.get())
        val question = fleet.takeQuestion(3)!!
        assertEquals((1000 * stretches[1].beginS).toLong(), question.fromMs)
        assertEquals(listOf("walking"), question.answers)
        assertEquals(2, question.minutes)
        assertNull(fleet.takeQuestion(3), "one is asked, and the next is due later")
        assertNull(configured().takeQuestion(3), "a restart asks nothing twice")
    }

    @Test
    fun `withdrawal ends work before it returns, and stays whenever the process ends`() {
        val fleet = configured()
        fleet.consent.grant("terms-3")
        platform.write()
        var ended = false
        fleet.consent.whenWithdrawn { ended = true }
        val over = { throw AssertionError("this work was over before") }
        fleet.consent.whenWithdrawn(over)
        fleet.consent.forget(over)
        fleet.consent.withdraw()
        assertTrue(ended)
        assertFalse(fleet.consent.isGranted)
        assertFalse(started().consent.isGranted, "the process ended before anything else was written")
        fleet.consent.grant("terms-4")
        fleet.consent.withdraw()
        platform.write()
        assertFalse(started().consent.isGranted, "what was to be written before the withdrawal is not written after it")
    }

    @Test
    fun `the aggregator is told of a withdrawal until it has confirmed it, by whatever process`() {
        val fleet = configured()
        assertTrue(fleet.consent.isWithdrawalConfirmed, "there never was consent")
        fleet.consent.grant("terms-3")
        platform.write()
        assertFalse(fleet.consent.isWithdrawalConfirmed)
        assertTrue(fleet.tellWithdrawal { false }, "there is nothing to tell of one who takes part")
        fleet.consent.withdraw()
        platform.write()
        assertEquals("withdrawal", platform.requests.last())
        assertFailsWith<LinkException>("b does not exist") { fleet.tellWithdrawal { true } }
        val next = started()
        next.configure(fleet.settings)
        platform.write()
        assertEquals("withdrawal", platform.requests.last())
        assertFalse(next.consent.isWithdrawalConfirmed)
        next.consent.grant("terms-4")
        platform.write()
        next.consent.confirm()
        assertFalse(next.consent.isWithdrawalConfirmed, "consent that came meanwhile is not withdrawn by an answer that is late")
        next.consent.withdraw()
        next.consent.confirm()
        assertTrue(started().consent.isWithdrawalConfirmed)
    }

    @Test
    fun `what is to be erased is erased, also by the next process, and the model stays`() {
        val fleet = configured()
        fleet.consent.grant("terms-3")
        platform.write()
        val bundle = "b".repeat(64)
        fleet.storage().saveCurrent(Current(bundle, "c".repeat(64), "r", mapOf("private/p" to Tensor.of(floatArrayOf(1f))), 2))
        File(fleet.home.recordings.apply { mkdirs() }, "r.csv").writeText("x")
        fleet.consent.withdraw(eraseLocal = true) // and the process ends
        val next = started()
        assertFalse(next.consent.isGranted)
        platform.write()
        assertFalse(next.home.recordings.exists())
        assertEquals(emptyMap(), next.storage().current()!!.private)
        assertEquals(listOf("r", "2"), next.model!!.let { listOf(it.run, "${it.release}") })
        File(next.home.recordings.apply { mkdirs() }, "r.csv").writeText("x")
        started()
        platform.write()
        assertTrue(next.home.recordings.exists(), "it is erased once")
    }

    @Test
    fun `a disk that takes nothing is waited for, and a setting that cannot be used is not`() {
        val fleet = configured()
        fleet.consent.grant("terms-3")
        platform.planning = { throw IOException("no space is left") }
        platform.write()
        assertEquals(Waiting(Waiting.Reason.STORAGE), fleet.state)
        platform.planning = { throw ConfigException("too often") }
        fleet.requestTraining()
        assertEquals(Blocked(Blocked.Reason.SETTINGS, "too often"), fleet.state)
        platform.planning = {}
        val file = File(fleet.home.folder, "settings.properties")
        file.delete()
        File(file, "held").mkdirs() // nothing can be renamed to it
        fleet.configure(fleet.settings)
        platform.write()
        assertEquals(Waiting(Waiting.Reason.STORAGE), fleet.state)
    }

    @Test
    fun `a disk that takes nothing at the first start is waited for, too`() {
        for (name in listOf("status.properties", "state")) {
            val fleet = configured(name.substringBefore('.'))
            val file = File(fleet.home.folder, name)
            if (name == "state") file.writeText("") else File(file, "held").mkdirs() // no folder can be made there, nothing can be renamed to it
            assertEquals(Waiting(Waiting.Reason.STORAGE), stateAfter(assertFailsWith<ConfigException>(name) { fleet.model }), name)
            file.deleteRecursively()
            assertNull(fleet.model, name)
        }
    }

    @Test
    fun `an app's model that finds no room is waited for, and not told as a setting`() {
        val fleet = configured()
        fleet.configure(FleetBuilder("f").broker("mqtt://b").windows(HomeTest.Source::class.java).allowInsecure().model("m.shoal").build())
        platform.reading = { throw IOException("no space is left") }
        assertEquals(Waiting(Waiting.Reason.STORAGE), stateAfter(assertFailsWith<ConfigException> { fleet.model }))
    }

    @Test
    fun `a disk that takes nothing keeps nobody from withdrawing`() {
        val fleet = configured()
        fleet.consent.grant("terms-3")
        platform.write()
        File(fleet.home.recordings.apply { mkdirs() }, "r.csv").writeText("x")
        File(fleet.home.folder, "erase.txt/held").mkdirs() // nothing can be renamed to it, nor written there
        var ended = false
        fleet.consent.whenWithdrawn { ended = true }
        fleet.consent.withdraw(eraseLocal = true)
        assertTrue(ended)
        platform.write()
        assertFalse(fleet.home.recordings.exists(), "it is erased by this process")
        assertFalse(started().consent.isGranted)
    }

    @Test
    fun `the state of another phone answers nothing until it is erased`() {
        val fleet = configured()
        fleet.storage().save(Session(released = 7))
        val other = FleetBuilder("f").broker("mqtt://b").windows(HomeTest.Source::class.java).allowInsecure().deviceId("another")
        fleet.configure(other.build())
        platform.write()
        for (use in listOf<() -> Any?>({ fleet.model }, { fleet.modelMetrics }, { fleet.storage() })) {
            assertTrue("and this is device another of fleet f" in assertFailsWith<ConfigException> { use() }.message!!)
        }
        fleet.consent.grant("terms-3")
        platform.write()
        fleet.consent.withdraw(eraseLocal = true)
        platform.write()
        assertEquals(7, fleet.storage().session().released)
    }

    @Test
    fun `a phone that leaves and joins again has no model of the job that ran meanwhile`() {
        val fleet = configured()
        val settings = fleet.settings
        val (stored, goesOn) = Pair(CountDownLatch(1), CountDownLatch(1))
        val job = thread {
            fleet.running.withLock {
                val storage = fleet.storage()
                storage.putBlob("b".repeat(64), byteArrayOf(1))
                stored.countDown()
                goesOn.await()
                storage.saveCurrent(Current("b".repeat(64), "c".repeat(64), "r", emptyMap(), 2))
            }
        }
        stored.await()
        fleet.leave()
        fleet.configure(settings)
        val writing = platform.writing()
        assertNull(fleet.model, "the app looks, and opens the state folder by that")
        goesOn.countDown()
        listOf(job, writing).forEach(Thread::join)
        assertNull(fleet.model)
        assertFalse(fleet.storage().hasBlob("b".repeat(64)))
    }

    @Test
    fun `listeners are told of states, and the last one of a job outlives the process`() {
        val fleet = configured()
        fleet.consent.grant("terms-3")
        val calls = ArrayList<String>()
        val listener = FleetListener { calls += it.toString() }
        fleet.addListener(listener, Runnable::run)
        fleet.states.set(FleetState.Training(3, 40))
        fleet.states.set(FleetState.Uploading)
        fleet.removeListener(listener)
        fleet.states.set(Waiting(Waiting.Reason.NETWORK))
        assertEquals(listOf("idle", "training 3/40", "uploading"), calls)
        for (state in listOf(FleetState.Idle, Waiting(Waiting.Reason.STORAGE), Blocked(Blocked.Reason.FAILED, "a b c"))) {
            fleet.home.noteState(state)
            assertEquals(state.toString(), started().states.now.toString())
        }
        assertEquals("idle", FleetState.parse("what is this").toString())
    }

    @Test
    fun `metrics are those of the windows held out, and nothing where nothing was measured`() {
        val fleet = configured()
        assertNull(fleet.model)
        assertNull(fleet.modelMetrics)
        val offer = io.shoal.core.ModelOffer(1, "r", "b".repeat(64), "c".repeat(64), evaluated = Metrics(4, 2.0, 3))
        fleet.storage().save(Session(offer = offer))
        val metrics = fleet.modelMetrics!!
        assertNull(metrics.before)
        assertEquals(listOf(4.0, 0.5, 0.75), metrics.after!!.let { listOf(it.windows.toDouble(), it.loss, it.accuracy) })
    }

    @Test
    fun `consent and leaving say what became of them`() {
        val fleet = configured()
        assertTrue(fleet.consent.grant("terms-1").also { platform.write() }.getNow(false))
        assertTrue(fleet.leave().also { platform.write() }.getNow(false))
        assertFalse(fleet.consent.isGranted)
        val tasks = ArrayDeque<Runnable>()
        val consent = Consent(Home.of(root, "g"), { tasks += it }, Runnable::run, {}, {}, { true }, { true })
        val outcome = consent.grant("terms-1")
        consent.withdraw()
        while (tasks.isNotEmpty()) tasks.removeFirst().run()
        assertFalse(outcome.getNow(true), "it was withdrawn before it was written")
        File(root, "fleets/h").run { parentFile.mkdirs(); writeText("a file in place of the folder") }
        assertFalse(Consent(Home.of(root, "h"), Runnable::run, Runnable::run, {}, {}, { true }, { true }).grant("terms-1").getNow(true))
    }

    @Test
    fun `a prediction is of its task's kind, and of examples by their numbers`() {
        val answer = Prediction.Classes(listOf("still", "walking"), Tensor.of(floatArrayOf(0.75f, 0.25f, 0.5f, 0.5f), listOf(2, 2)))
        assertEquals(2, answer.size)
        assertEquals(listOf(0.75f, 0.25f), answer.values(0).toList())
        assertEquals(listOf("still", "still"), listOf(answer.best(0), answer.best(1)), "the first of equal ones")
        assertFailsWith<IndexOutOfBoundsException> { answer.values(2) }
        val several = Prediction.Labels(answer.names, Tensor.of(floatArrayOf(0.75f, 0.25f, 0.5f, 0.9f), listOf(2, 2)))
        assertEquals(listOf(listOf("still"), listOf("still", "walking")), listOf(several.likely(0), several.likely(1)))
        val steps = Prediction.Steps(answer.names, Tensor.of(floatArrayOf(0.75f, 0.25f, 0.1f, 0.9f), listOf(1, 2, 2)))
        assertEquals(listOf("still", "walking"), steps.best(0))
        assertEquals(4, steps.values(0).size)
        val numbers = Tensor.of(floatArrayOf(1f), listOf(1, 1))
        val kinds = listOf("classification", "multi-label", "sequence", "regression", "reconstruction").map { Prediction.of(it, listOf("a"), numbers) }
        assertEquals(listOf("Classes", "Labels", "Steps", "Quantities", "Quantities"), kinds.map { it.javaClass.simpleName })
        assertEquals(4, kinds.toSet().size, "equal are those of one kind with the same numbers")
    }

    @Test
    fun `states and models that say the same are equal, so that a flow tells of them once`() {
        val states: List<() -> FleetState> = listOf(
            { FleetState.Idle },
            { Waiting(Waiting.Reason.NETWORK) },
            { Waiting(Waiting.Reason.JOB) },
            { FleetState.Training(3, 40) },
            { FleetState.Training(4, 40) },
            { FleetState.Uploading },
            { Blocked(Blocked.Reason.BANNED, "a") },
            { Blocked(Blocked.Reason.BANNED, "b") },
        )
        for ((i, one) in states.withIndex()) for ((j, other) in states.withIndex()) assertEquals(i == j, one() == other(), "${one()} and ${other()}")
        assertEquals(states.size, states.flatMapTo(HashSet()) { listOf(it(), it()) }.size)
        assertEquals(ModelInfo("a", "r", 1), ModelInfo("a", "r", 1))
        assertEquals(4, setOf(ModelInfo("a", "r", 1), ModelInfo("b", "r", 1), ModelInfo("a", "s", 1), ModelInfo("a", "r", 2)).size)
    }

    @Test
    fun `what a screen lists is equal if it says the same`() {
        val lists: List<() -> Any> = listOf(
            { Labels.LabelledTime(1, 2, LabelSource.APP, "a") },
            { Labels.LabelledTime(1, 2, LabelSource.HINT, "a") },
            { Labels.LabelledTime(1, 3, LabelSource.APP, "a") },
            { Labels.LabelQuestion(1, 2, listOf("a", "b")) },
            { Labels.LabelQuestion(1, 2, listOf("b", "a")) },
            { StoredRecordings.RecordingInfo(1, "a", 2, 3) },
            { StoredRecordings.RecordingInfo(1, "a", 3, 3) },
            { StoredRecordings.RecordingInfo(1, "b", 2, 3) },
        )
        for ((i, one) in lists.withIndex()) for ((j, other) in lists.withIndex()) assertEquals(i == j, one() == other(), "${one()} and ${other()}")
        assertEquals(lists.size, lists.flatMapTo(HashSet()) { listOf(it(), it()) }.size)
    }

    @Test
    fun `whatever the Keystore throws is one error that an app can catch`() {
        val broken = FakePlatform(TestKeys(root, KeyStore.getInstance("PKCS12"))) // a store that was not loaded throws at every use
        val fleet = Fleet("f", Home.of(root, "f"), broken, Log.SILENT)
        fleet.configure(FleetBuilder("f").broker("mqtt://b").windows(HomeTest.Source::class.java).allowInsecure().build())
        assertTrue("KeyStoreException" in assertFailsWith<ConfigException> { fleet.certificateRequest() }.message!!)
        assertTrue("KeyStoreException" in assertFailsWith<ConfigException> { fleet.installCertificate("x") }.message!!)
        fleet.leave()
        broken.write() // and nothing is thrown in the thread that writes
        assertEquals(Blocked.Reason.CONSENT, assertIs<Blocked>(fleet.state).reason)
    }
}
