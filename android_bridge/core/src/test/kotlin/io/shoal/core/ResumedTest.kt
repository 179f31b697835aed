package io.shoal.core

import io.shoal.core.wire.Acknowledge
import io.shoal.core.wire.Bundle
import io.shoal.core.wire.DeclineReason
import io.shoal.core.wire.Evaluate
import io.shoal.core.wire.Plan
import io.shoal.core.wire.Policy
import io.shoal.core.wire.Train
import io.shoal.core.wire.Update
import io.shoal.core.wire.decodeUpdate
import io.shoal.core.wire.digest
import org.junit.jupiter.api.io.TempDir
import java.io.File
import java.io.IOException
import java.util.Random
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertFalse
import kotlin.test.assertNotNull
import kotlin.test.assertNull
import kotlin.test.assertTrue

/** A device that is stopped or killed during a plan resumes it. */
class ResumedTest {
    @TempDir
    lateinit var folder: File

    private val verbs = listOf(Evaluate("inputs", "survey"), Train(8, 6), Evaluate())
    private val plan get() = Fixture.plan(verbs = verbs)
    private val file get() = File(folder, "checkpoint")

    /** Simulated end of the process. */
    private class Killed : Error()

    /** Graphs that record their runs, and end the process of [dying] at the run number [last]. */
    private class Mortal(private val last: Int = Int.MAX_VALUE, private val dying: Dying? = null) : GraphLoader {
        override val runtime = "fake"
        val runs = ArrayList<String>()

        override fun load(bundle: Bundle): Graphs = object : Graphs by FakeGraphs() {
            private val graphs = FakeGraphs()

            override fun run(graph: String, inputs: Tensors): Tensors {
                if (runs.size == last) dying!!.die()
                runs += graph
                return graphs.run(graph, inputs)
            }
        }
    }

    private fun device(
        storage: Storage = FolderStorage(folder),
        loader: GraphLoader = FakeLoader(),
        windows: Windows = Fixture.windows,
        policy: Policy? = null,
        stop: () -> Boolean = { false },
        pace: Pace = Pace(),
    ) = FakeAggregator(storage, loader = loader, windows = windows, policy = policy, stop = stop, pace = pace)

    /** Return the update without the parts that may differ between two computations of it. */
    private fun read(payload: ByteArray): Pair<Update, Tensors> =
        decodeUpdate(payload).let { (update, tensors) -> Pair(update.copy(bytesReceived = 0, trainS = 0.0), tensors) }

    private val whole by lazy { undisturbed(plan) }

    private fun undisturbed(plan: Plan): Pair<Update, Tensors> {
        val device = device(FolderStorage(File(folder, "whole"))).up()
        device.plan(plan)
        device.offer()
        return read(device.sent("update").single())
    }

    /** Run a plan that is stopped in an orderly way before its batch number [at]. */
    private fun stopped(at: Int, plan: Plan = this.plan) {
        var calls = 0
        val device = device(stop = { calls++ >= at }).up()
        assertFailsWith<StoppedException> {
            device.plan(plan)
            device.offer()
        }
        assertEquals(0, FolderStorage(folder).session().tries)
    }

    @Test
    fun `a stopped plan goes on where it was`() {
        stopped(30)
        val (_, checkpoint) = decodeCheckpoint(FolderStorage(folder).checkpoint()!!)
        val (loader, all) = Pair(Mortal(), Mortal())
        val device = device(loader = loader).up()
        device.work()
        assertEquals(whole, read(device.sent("update").single()))
        device(FolderStorage(File(folder, "all")), all).up().apply { plan(plan) }.offer()
        assertEquals(all.runs.size, loader.runs.size + checkpoint.place.runs.toInt())
        assertFalse(file.exists())
    }

    /**
     * Storage that holds in memory the files that are written often: a disk would need minutes for
     * the thousands of writes of these tests.
     */
    private class QuickStorage(private val disk: Storage) : Storage by disk {
        private var session = encodeSession(disk.session())
        private var checkpoint: ByteArray? = null

        override fun session(): Session = decodeSession(session)

        override fun save(session: Session) {
            this.session = encodeSession(session)
        }

        override fun checkpoint(): ByteArray? = checkpoint

        override fun putCheckpoint(payload: ByteArray) {
            checkpoint = payload
        }

        override fun dropCheckpoint() {
            checkpoint = null
        }
    }

    /**
     * Storage that ends the process at its write number [at], before or after the write, or at a
     * set moment. What the agent does after that is not stored: from then on every write fails.
     */
    private class Dying(
        private val storage: Storage,
        private val at: Int = Int.MAX_VALUE,
        private val after: Boolean = false,
    ) : Storage by storage {
        private var writes = 0
        private var dead = false

        fun die(): Nothing {
            dead = true
            throw Killed()
        }

        override fun save(session: Session) = write { storage.save(session) }

        override fun putCheckpoint(payload: ByteArray) = write { storage.putCheckpoint(payload) }

        override fun dropCheckpoint() = write { storage.dropCheckpoint() }

        override fun putUpdate(runId: String, round: Long, payload: ByteArray, private: Tensors) =
            write { storage.putUpdate(runId, round, payload, private) }

        override fun keepBlobs(digests: Set<String>) = write { storage.keepBlobs(digests) }

        override fun dropUpdate() = write { storage.dropUpdate() }

        private fun write(action: () -> Unit) {
            writes++
            if (dead || writes == at && !after) die()
            action()
            if (writes == at) die()
        }
    }

    @Test
    fun `a plan whose process is killed at random thirty times ends, counts once, and has the same bits`() {
        val random = Random(8)
        val long = Fixture.plan(verbs = listOf(Evaluate("inputs", "survey"), Train(8, 30), Evaluate()))
        val expected = undisturbed(long)
        repeat(3) { number ->
            val disk = QuickStorage(FolderStorage(File(folder, "killed-$number")))
            val sent = ArrayList<ByteArray>()
            var kills = 0
            while (disk.session().stage != Stage.ANSWERED || sent.isEmpty()) {
                check(kills < 500) { "it does not end" }
                val inRun = random.nextInt(3) == 0
                val dying = Dying(disk, if (inRun) Int.MAX_VALUE else 4 + random.nextInt(8), random.nextBoolean())
                val loader = if (inRun) Mortal(1 + random.nextInt(4), dying) else FakeLoader()
                var device: FakeAggregator? = null
                try {
                    device = device(dying, loader, pace = EVERY_BATCH).up()
                    device.plan(long)
                    device.offer()
                    for (payload in device.sent("update").also { sent += it }) device.reply(Acknowledge("phone", digest(payload)))
                } catch (_: Killed) {
                    kills++
                }
                sent += device?.sent("update").orEmpty()
                assertEquals(emptyList(), device?.declines().orEmpty().map { it.detail })
            }
            assertTrue(kills >= 30, "$kills kills")
            assertEquals(expected, read(sent.distinctBy(::digest).single()))
            assertNull(disk.checkpoint(), "after $kills kills")
        }
    }

    @Test
    fun `a damaged checkpoint is dropped with a warning`() {
        for ((number, damage) in listOf<(ByteArray) -> ByteArray>(
            { it.copyOf().also { bytes -> bytes[300] = (bytes[300] + 1).toByte() } },
            { it.copyOf(it.size - 1) },
            { ByteArray(0) },
            { ByteArray(99) },
        ).withIndex()) {
            val next = Fixture.plan(number + 1L, verbs = verbs)
            stopped(30, next)
            file.writeBytes(damage(file.readBytes()))
            val loader = Mortal()
            val device = device(FolderStorage(folder, { _, line -> log += line }), loader).up()
            device.work()
            assertEquals(whole.first.copy(round = number + 1L), read(device.sent("update").single()).first)
            assertEquals("survey", loader.runs.first())
            assertTrue(log.any { "File is damaged and deleted, the plan starts again" in it && "/checkpoint: " in it }, "$log")
            log.clear()
        }
    }

    private val log = ArrayList<String>()

    @Test
    fun `a checkpoint of other work is dropped with a warning`() {
        fun runs(change: String): List<String> {
            stopped(30)
            val moved = Fixture.windows.run {
                Windows(trainX, trainY, testX.take(IntArray(numTest) { numTest - 1 - it }), testY, unlabelledX)
            }
            val loader = Mortal()
            val other = object : GraphLoader by loader {
                override val runtime = if (change == "runtime") "another" else "fake"
            }
            val device = device(loader = other, windows = if (change == "windows") moved else Fixture.windows)
            if (change == "plan") device.plan(Fixture.plan(verbs = verbs.drop(1)))
            device.up()
            device.work()
            assertEquals(1, device.sent("update").size)
            assertEquals(change != "nothing", device.log.any { "Checkpoint dropped, the plan starts again: device=" in it }, change)
            folder.deleteRecursively()
            return loader.runs
        }
        assertEquals("survey", runs("windows").first())
        assertEquals("survey", runs("runtime").first())
        assertEquals("step", runs("plan").first())
        assertFalse("survey" in runs("nothing"))
    }

    @Test
    fun `an aggregator that was started again costs no work`() {
        stopped(30)
        val loader = Mortal()
        val device = device(loader = loader)
        device.plan(plan.copy(epoch = 6, deadlineAtS = 2e9))
        device.up(status = false).status(epoch = 6)
        device.work()
        assertEquals(6, read(device.sent("update").single()).first.epoch)
        assertFalse("survey" in loader.runs)
    }

    @Test
    fun `it is deleted when the plan is over`() {
        fun after(end: (FakeAggregator) -> Unit): Boolean {
            stopped(30)
            assertTrue(file.exists())
            end(device())
            return file.exists().also { folder.deleteRecursively() }
        }
        assertFalse(after { it.up().work() }, "carried out")
        assertFalse(after { it.deliver(it.topics.device("phone", "plan"), Fixture.plan(2)) }, "another plan")
        assertFalse(after { it.deliver(it.topics.device("phone", "reply"), Fixture.finish()) }, "the run is over")
        assertFalse(after { it.up(status = false).apply { status(2e9, "late") }.after(0.0) }, "its deadline is over")
        assertFalse(after { FolderStorage(folder).erase() }, "erased")
        stopped(30)
        val payload = file.readBytes()
        device().up().work()
        file.writeBytes(payload)
        device()
        assertFalse(file.exists(), "a crash left it beside a finished plan")
    }

    @Test
    fun `a full disk costs the checkpoint alone`() {
        val full = object : Storage by FolderStorage(folder) {
            override fun putCheckpoint(payload: ByteArray) = throw IOException("No space left on device")
        }
        val device = device(full, pace = EVERY_BATCH).up()
        device.plan(plan)
        device.offer()
        assertEquals(whole, read(device.sent("update").single()))
        assertTrue(device.log.any { "Checkpoint not written, work continues: device=" in it })
    }

    @Test
    fun `the checkpoint makes room for the update`() {
        stopped(30)
        val inner = FolderStorage(folder)
        val tight = object : Storage by inner {
            override fun putUpdate(runId: String, round: Long, payload: ByteArray, private: Tensors) {
                if (file.exists()) throw IOException("No space left on device")
                inner.putUpdate(runId, round, payload, private)
            }
        }
        val device = device(tight).up()
        device.work()
        assertEquals(whole, read(device.sent("update").single()))
    }

    @Test
    fun `a plan that is ended again and again but comes further is not quarantined`() {
        val long = Fixture.plan(verbs = listOf(Train(8, 40)))
        val disk = QuickStorage(FolderStorage(folder))
        fun killed(runs: Int) {
            val storage = Dying(disk)
            val device = device(storage, Mortal(runs, storage), pace = EVERY_BATCH).up()
            assertFailsWith<Killed> {
                device.plan(long)
                device.offer()
            }
            assertEquals(emptyList(), device.declines())
        }
        repeat(3 * Rounds.MOST_TRIES) {
            killed(4)
            assertEquals(0, disk.session().tries)
        }
        assertNotNull(disk.checkpoint())
        repeat(Rounds.MOST_TRIES) {
            killed(0) // from here on no start comes any further
            assertEquals(it + 1, disk.session().tries)
        }
        val device = device(disk).up()
        device.work()
        assertEquals(DeclineReason.QUARANTINED, device.declines().single().reason)
        assertNull(disk.checkpoint())
    }

    @Test
    fun `the seconds of a plan are counted over its jobs`() {
        stopped(30)
        val storage = FolderStorage(folder)
        val (basis, checkpoint) = decodeCheckpoint(storage.checkpoint()!!)
        val late = checkpoint.run { Checkpoint(place.copy(seconds = 99.0), tensors, sent, protected, evaluated, trained, within) }
        storage.putCheckpoint(encodeCheckpoint(basis, late))
        val device = device(policy = Policy(maxSeconds = 98.0)).up()
        device.work()
        assertTrue("max_seconds" in device.declines().single().detail)
    }

    private companion object {
        /** Pace of a checkpoint before each run of a graph. */
        val EVERY_BATCH = Pace(0.0, 1e9)
    }
}
