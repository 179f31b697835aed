package io.shoal.core

import org.junit.jupiter.api.io.TempDir
import java.io.File
import kotlin.test.Test
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertNull

class FolderStorageTest {
    @TempDir
    lateinit var folder: File

    private fun tensors(value: Float): Tensors = mapOf("private/p" to Tensor.of(floatArrayOf(value)))

    @Test
    fun `what was saved is there after a restart`() {
        val session = Session("r", 3, 1.5, Fixture.plan(4), Pending("r", 3, 2.0), mapOf("fake" to 3L), "m", "b", true)
        FolderStorage(folder).apply {
            assertEquals(Session(), session())
            save(session)
            putBlob("a".repeat(64), byteArrayOf(1, 2))
            putUpdate("r", 4, byteArrayOf(3), tensors(4f))
        }
        FolderStorage(folder).apply {
            assertEquals(session, session())
            assertContentEquals(byteArrayOf(1, 2), blob("a".repeat(64)))
            assertContentEquals(byteArrayOf(3), update())
            assertEquals(tensors(4f), private("r", 5))
            keepBlobs(setOf("b"))
            dropUpdate()
            assertNull(blob("a".repeat(64)))
            assertNull(update())
        }
        assertEquals(emptyList(), folder.walk().filter { it.extension == "new" }.toList())
    }

    @Test
    fun `a round that is carried out again starts from the private tensors it started from before`() {
        val storage = FolderStorage(folder)
        assertEquals(emptyMap(), storage.private("r", 1))
        for (round in 1L..4L) storage.putUpdate("r", round, byteArrayOf(), tensors(round.toFloat()))
        assertEquals(tensors(3f), storage.private("r", 4))
        assertEquals(tensors(4f), storage.private("r", 9))
        assertEquals(emptyMap(), storage.private("other", 9))
        assertEquals(2, folder.listFiles()!!.count { it.name.startsWith("private.") })
    }

    @Test
    fun `a write that did not finish left the old file`() {
        FolderStorage(folder).save(Session(runId = "r"))
        File(folder, "session.json.new").writeText("{\"run_id\":")
        assertEquals(Session(runId = "r"), FolderStorage(folder).session())
    }

    @Test
    fun `a damaged session is one clear error`() {
        File(folder, "session.json").writeText("{\"plan\":5}")
        assertFailsWith<ConfigException> { FolderStorage(folder).session() }
        assertFailsWith<ConfigException> { FolderStorage(File(folder, "session.json/x")) }
    }
}
