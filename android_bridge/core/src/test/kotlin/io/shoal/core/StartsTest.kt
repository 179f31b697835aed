package io.shoal.core

import io.shoal.core.wire.CheckIn
import io.shoal.core.wire.Fields
import io.shoal.core.wire.Refuse
import io.shoal.core.wire.decode
import io.shoal.core.wire.parseJson
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.TestFactory
import org.junit.jupiter.api.io.TempDir
import java.io.File
import java.io.IOException
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertFalse
import kotlin.test.assertNotEquals
import kotlin.test.assertTrue

/** Two devices of one identity: starts of the client, and the refusal of the second device. */
class StartsTest {
    @TempDir
    lateinit var folder: File

    private val vectors by lazy { Fields(parseJson(File(repository, "wire/vectors/starts.json").readBytes()), "starts.json") }

    private fun refusal(instance: Long) = Refuse("phone", "second-device", "", "check-in", "", instance)

    private fun checkIn(device: FakeAggregator): CheckIn = decode(device.sent("check-in").last())

    @TestFactory
    fun `start that every implementation counts`(): List<DynamicTest> =
        vectors.list("begin") { it, path -> Fields(it, path) }.map { case ->
            DynamicTest.dynamicTest(case.string("name")) {
                val place = File(folder, case.string("name").filter(Char::isLetter))
                val disk = FolderStorage(place)
                val last = case.takeIf { it.has("last") }?.let { runCatching { it.objectOrNull("last") { f -> f } } }
                val stored = last?.getOrNull()
                when {
                    last?.isFailure == true -> File(place, "start.json").writeText("damaged")
                    stored != null -> disk.saveStart(Start(stored.count("number"), stored.count("instance"), stored.bool("is_refused")))
                }
                val storage = if (case.bool("stored")) disk else object : Storage by disk {
                    override fun saveStart(start: Start) = throw IOException("No space left on device")
                }
                if (case.bool("ends")) {
                    assertTrue(storage.start().refused)
                } else {
                    val start = Start.begin(storage, Log.SILENT, case.count("drawn"))
                    assertEquals(Start(case.count("number"), case.count("instance")), start)
                    if (case.bool("stored")) assertEquals(start, FolderStorage(place).start())
                }
            }
        }

    @TestFactory
    fun `refusal that every implementation reads`(): List<DynamicTest> =
        vectors.list("refuse") { it, path -> Fields(it, path) }.map { case ->
            DynamicTest.dynamicTest(case.string("name")) {
                val refusal = Refuse("d", case.string("reason"), "", "check-in", "", case.count("refused"))
                assertEquals(case.bool("ends"), Start(3, case.count("instance")).isMeantBy(refusal))
            }
        }

    @Test
    fun `a check-in has the start, which is on disk before, and a new start is another one`() {
        val first = checkIn(FakeAggregator(FolderStorage(folder)).up())
        assertEquals(listOf(1L, first.instance), FolderStorage(folder).start().run { listOf(number, instance) })
        val again = FakeAggregator(FolderStorage(folder)).up()
        val second = checkIn(again)
        assertEquals(2L, second.start)
        assertNotEquals(first.instance, second.instance)
        again.status(bootId = "another")
        assertEquals(second, checkIn(again), "a reconnection is the same start")
    }

    @Test
    fun `a second device ends and connects no more, and the other one goes on`() {
        val device = FakeAggregator(FolderStorage(folder)).up()
        val instance = checkIn(device).instance
        device.reply(refusal(instance xor 1))
        assertFalse(device.agent.isSecond)
        device.plan()
        device.offer()
        assertEquals(1, device.sent("update").size)
        device.reply(refusal(instance))
        assertTrue(device.agent.isSecond)
        device.plan(Fixture.plan(2))
        device.offer()
        assertEquals(0, device.sent("update").size)
        val nowhere = BrokerAddress("127.0.0.1", 1)
        val phone = Phone("phone", "f", nowhere, Fixture.windows, FolderStorage(folder), FakeLoader(), Fixture.keys)
        val error = assertFailsWith<ConfigException> { phone.job(connectMs = 0) }
        assertTrue("another device uses this identity" in error.message.orEmpty())
    }
}
