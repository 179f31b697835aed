package io.shoal.core

import io.shoal.core.wire.DeclineReason
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.digest
import org.junit.jupiter.api.io.TempDir
import java.io.File
import kotlin.test.Test
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertNotNull
import kotlin.test.assertNull
import kotlin.test.assertTrue

class FolderStorageTest {
    @TempDir
    lateinit var folder: File

    private val log = ArrayList<String>()

    private fun storage(owner: Owner? = null) = FolderStorage(folder, { level, line -> log += "$level $line" }, owner)

    private fun tensors(value: Float): Tensors = mapOf("private/p" to Tensor.of(floatArrayOf(value)))

    private val blob = byteArrayOf(1, 2)

    private val session = Session(
        Fixture.plan(4), "as it came\n{}", Stage.DECLINED, 3, "a".repeat(64), DeclineReason.DATA, "why\n", mapOf("fake" to 3L),
        ModelOffer(5, "r", "b".repeat(64), "c".repeat(64), 7, "left", 2, "no", Metrics(3, 1.5, 2), latencyMs = 0.25), 5, 7, 6,
    )

    @Test
    fun `what was learned is erased and the model stays`() {
        val (bundle, model) = Pair("b".repeat(64), digest(blob))
        storage().apply {
            save(session)
            putBlob(digest(blob), blob)
            putBlob(digest(byteArrayOf(9)), byteArrayOf(9))
            putUpdate("r", 4, byteArrayOf(3), tensors(4f))
            for (number in 1L..2L) saveCurrent(Current(bundle, model, "r", tensors(1f), number, personalModel = digest(byteArrayOf(9))))
            erase()
        }
        storage().apply {
            assertEquals(Session(versions = session.versions, offeredEpoch = 5, released = 7, releasedEpoch = 6), session())
            assertNull(update())
            assertNull(before())
            assertEquals(emptyMap(), private("r", 5))
            assertEquals(listOf(bundle, model, "2", ""), current()!!.let { listOf(it.bundle, it.model, "${it.release}", it.personalModel) })
            assertEquals(emptyMap(), current()!!.private)
            assertContentEquals(blob, blob(digest(blob)))
            assertNull(blob(digest(byteArrayOf(9))))
        }
    }

    @Test
    fun `a file system that cannot write a folder's entries at once is no error, and its defects are`() {
        var folders = 0
        syncFolder(folder) { folders++ }
        syncFolder(folder) { throw java.io.IOException("Invalid argument") }
        assertFailsWith<IllegalStateException> { syncFolder(folder) { throw IllegalStateException() } }
        syncFolder(File(folder, "none"))
        assertEquals(1, folders)
    }

    @Test
    fun `two threads that write and one that reads see whole files alone`() {
        val writes = 200 // of each thread
        val one = storage()
        val over = java.util.concurrent.atomic.AtomicBoolean()
        val failures = java.util.concurrent.ConcurrentLinkedQueue<Throwable>()
        fun guarded(act: () -> Unit) = kotlin.concurrent.thread {
            try {
                act()
            } catch (error: Throwable) {
                failures += error
            }
        }
        val model = guarded {
            for (number in 1L..writes) one.saveCurrent(Current("b".repeat(64), digest(blob), "r", tensors(number.toFloat()), number))
        }
        val counts = guarded {
            for (number in 1L..writes) if (number % 2 == 0L) one.saveFailures(number) else one.putCheckpoint(ByteArray(500) { number.toByte() })
        }
        val reading = guarded {
            while (!over.get()) {
                one.current()?.let { assertEquals(it.release.toFloat(), it.private.getValue("private/p").floats().get(0)) }
                one.checkpoint()?.let { read -> assertTrue(read.size == 500 && read.all { it == read[0] }) }
                assertTrue(one.failures() in 0..writes)
            }
        }
        listOf(model, counts).forEach { it.join() }
        over.set(true)
        reading.join()
        assertEquals(emptyList(), failures.map { it.stackTraceToString() })
        assertEquals(emptyList(), log, "nothing was damaged")
        assertEquals(writes.toLong(), storage().current()!!.release)
    }

    @Test
    fun `what was saved is there after a restart`() {
        storage().apply {
            assertEquals(Session(), session())
            assertNull(current())
            save(session)
            putBlob(digest(blob), blob)
            putUpdate("r", 4, byteArrayOf(3), tensors(4f))
            saveCurrent(Current("b".repeat(64), "c".repeat(64), "r", tensors(1f)))
            saveTraffic(mapOf(5L to 7L))
        }
        storage().apply {
            assertEquals(session, session())
            assertContentEquals(blob, blob(digest(blob)))
            assertContentEquals(byteArrayOf(3), update())
            assertEquals(tensors(4f), private("r", 5))
            assertEquals(listOf("b".repeat(64), "c".repeat(64), "r"), current()!!.let { listOf(it.bundle, it.model, it.run) })
            assertEquals(tensors(1f), current()!!.private)
            assertEquals(mapOf(5L to 7L), traffic())
            keepBlobs(setOf("b"))
            dropUpdate()
            assertNull(blob(digest(blob)))
            assertNull(update())
        }
        assertEquals(emptyList(), folder.walk().filter { it.extension == "new" }.toList())
        assertEquals(emptyList(), log)
    }

    @Test
    fun `a round that is carried out again starts from the private tensors it started from before`() {
        val storage = storage()
        assertEquals(emptyMap(), storage.private("r", 1))
        for (round in 1L..4L) storage.putUpdate("r", round, byteArrayOf(), tensors(round.toFloat()))
        assertEquals(tensors(3f), storage.private("r", 4))
        assertEquals(tensors(4f), storage.private("r", 9))
        assertEquals(emptyMap(), storage.private("other", 9))
        assertEquals(2, folder.listFiles()!!.count { it.name.startsWith("private.") })
    }

    @Test
    fun `private tensors of a few runs are kept`() {
        val storage = storage()
        for (run in 1..6) {
            storage.putUpdate("run.$run", 1, byteArrayOf(), tensors(run.toFloat()))
            folder.listFiles()!!.filter { it.name.startsWith("private.run.$run.") }.forEach { it.setLastModified(1_000_000L * run) }
        }
        storage.putUpdate("run.6", 2, byteArrayOf(), tensors(0f))
        assertEquals(listOf(3, 4, 5, 6), (1..6).filter { storage.private("run.$it", 2).isNotEmpty() })
    }

    @Test
    fun `a write that did not finish left the old file`() {
        storage().save(session)
        File(folder, "session.json.new").writeText("{\"plan\":")
        assertEquals(session, storage().session())
    }

    @Test
    fun `what was damaged is missing, with a warning, and nothing else is`() {
        storage().apply {
            save(session)
            putBlob(digest(blob), blob)
            for (round in 1L..2L) putUpdate("r", round, byteArrayOf(3), tensors(round.toFloat()))
            for (number in 1L..3L) saveCurrent(Current("b".repeat(64), "$number".repeat(64), "r", tensors(1f), number))
            saveFailures(4)
            saveTraffic(mapOf(5L to 7L))
        }
        val files = folder.walk().filter { it.isFile }.map { it.relativeTo(folder).path }.sorted().toList()
        assertEquals(9, files.size)
        for (name in files) for (damage in listOf<(ByteArray) -> ByteArray>(::cut, ::flipped, { ByteArray(0) }, { ByteArray(3000) })) {
            val copy = File(folder.parentFile, "copy-${folder.name}").apply { deleteRecursively() }
            folder.copyRecursively(copy)
            File(copy, name).apply { writeBytes(damage(readBytes())) }
            log.clear()
            val storage = FolderStorage(copy, { level, line -> log += "$level $line" })
            assertEquals(if (name == "session.json") Session() else session, storage.session())
            assertEquals(if (name == "current") 2 else 3, storage.current()!!.release, "the model before answers")
            assertEquals(if (name == "before") null else 2L, storage.before()?.release)
            assertEquals(if (name == "failures") 0 else 4, storage.failures())
            assertEquals(name == "update", storage.update() == null)
            assertEquals(name.startsWith("blobs"), storage.blob(digest(blob)) == null)
            assertEquals(name == "traffic.json", storage.traffic().isEmpty())
            assertEquals(tensors(if (name.endsWith("00002")) 1f else 2f), storage.private("r", 9))
            if (!name.endsWith("00001")) {
                assertEquals(1, log.size, "$name: $log")
                assertTrue("WARNING" in log[0] && "damaged" in log[0])
                assertTrue(!File(copy, name).exists())
            }
            storage.save(session)
            assertNotNull(storage.session().plan)
            copy.deleteRecursively()
        }
    }

    private fun cut(bytes: ByteArray) = bytes.copyOf(bytes.size - 1)

    private fun flipped(bytes: ByteArray) = bytes.copyOf().also { it[bytes.size / 2] = (it[bytes.size / 2].toInt() xor 4).toByte() }

    @Test
    fun `the state of another phone is one clear error, until what was learned is erased`() {
        val (one, other) = Pair(Owner("one", "watch"), Owner("other", "watch"))
        storage(one).save(Session(released = 7))
        for (wrong in listOf(other, Owner("one", "ring"))) {
            val error = assertFailsWith<ConfigException> { storage(wrong) }
            assertTrue("belongs to device one of fleet watch, and this is $wrong" in error.message!!)
        }
        assertEquals(7, storage(one).session().released)
        storage().erase()
        assertEquals(7, storage(other).session().released)
        assertFailsWith<ConfigException> { storage(one) }
    }

    @Test
    fun `a folder of another format is one clear error, and a damaged note is written anew`() {
        storage(Owner("one", "watch"))
        val note = File(folder, "device.json")
        note.writeText("damaged")
        storage(Owner("one", "watch"))
        assertTrue("its owner is stored again" in log.single())
        val other = """{"device_id":"one","fleet":"watch","format":2}""".toByteArray()
        note.writeBytes(digest(other).toByteArray() + other)
        val error = assertFailsWith<ConfigException> { storage(Owner("one", "watch")) }
        assertTrue("has format 2, and this client reads format 1" in error.message!!, error.message)
    }

    @Test
    fun `a folder that cannot be written is one clear error`() {
        File(folder, "file").writeText("x")
        assertFailsWith<ConfigException> { FolderStorage(File(folder, "file/x")) }
    }
}
