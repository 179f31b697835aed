package io.shoal.core

import io.shoal.core.wire.CheckIn
import io.shoal.core.wire.DeclineReason
import io.shoal.core.wire.ErrorReport
import io.shoal.core.wire.Fields
import io.shoal.core.wire.InUse
import io.shoal.core.wire.Policy
import io.shoal.core.wire.Topics
import io.shoal.core.wire.decode
import io.shoal.core.wire.encode
import io.shoal.core.wire.errorReportOf
import io.shoal.core.wire.parseJson
import org.junit.jupiter.api.io.TempDir
import java.io.File
import java.util.Properties
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertIs
import kotlin.test.assertTrue

/** Reports of a phone's errors and versions. */
class ErrorReportsTest {
    @TempDir
    lateinit var folder: File

    private val vectors = Fields(parseJson(File(repository, "wire/vectors/errors.json").readBytes()), "errors.json")

    private fun cases(key: String): List<Fields> = vectors.list(key) { it, path -> Fields(it, path) }.also { assertTrue(it.size >= 5) }

    /** Loader whose graphs fail with [error]. */
    private class Failing(private val error: () -> Throwable) : GraphLoader by FakeLoader() {
        override fun load(bundle: io.shoal.core.wire.Bundle): Graphs = throw error()
    }

    private fun device(policy: Policy? = null, health: Health = Health(), error: () -> Throwable) =
        FakeAggregator(FolderStorage(folder), policy = policy, loader = Failing(error), health = { health })

    private fun errors(device: FakeAggregator): List<ErrorReport> {
        device.agent.tick()
        return device.sent("error").map { decode(it) }
    }

    /** Have the plan of a round fail. */
    private fun FakeAggregator.fail(round: Long = 1) {
        plan(Fixture.plan(round))
        offer()
    }

    @Test
    fun `reports are those of the vectors`() {
        for (case in cases("reports")) {
            val expected = errorReportOf(case.obj("expected"))
            val given = case.obj("report") // it may be longer than a message
            val report = expected.copy(error = given.string("error"), message = given.string("message"), frames = given.strings("frames"))
            assertEquals(expected, ErrorReports.bounded(report, case.string("home")), case.string("name"))
            assertTrue(encode(expected).size <= ErrorReports.MOST_BYTES)
        }
    }

    @Test
    fun `details of declines are those of the vectors`() {
        for (case in cases("details")) {
            val reason = DeclineReason.entries.first { it.text == case.string("reason") }
            assertEquals(case.string("expected"), ErrorReports.permittedDetail(case.bool("report_errors"), reason, case.string("detail")))
        }
    }

    @Test
    fun `plans that cannot be read are declined or ignored as in the vectors`() {
        val topics = Topics("f")
        val admission = Admission(Identity("p01-left", "f"), topics, AggregatorTime(TestClock()), Log.SILENT)
        for (case in cases("plans")) {
            val admitted = admission.admit(Delivery(topics.device("p01-left", "plan"), case.string("plan").toByteArray()))
            if (!case.bool("outdated")) {
                assertEquals(null, admitted, case.string("name"))
                continue
            }
            val unread = assertIs<Admitted.OfUnreadPlan>(admitted, case.string("name"))
            assertEquals(Pair(3L, 7L), Pair(unread.plan.round, unread.plan.attempt))
            assertTrue("${BuildVersion.CLIENT}, which speaks protocol 1.1" in unread.problem, unread.problem)
            assertTrue("update the app" in unread.problem, unread.problem)
        }
    }

    @Test
    fun `the version is that of the build, and a check-in has it with those of the protocol and the app`() {
        val properties = Properties().apply { File(repository, "android_bridge/gradle.properties").reader().use(::load) }
        val checkIn = decode<CheckIn>(device(health = Health(app = "3.14.0")) { OutOfMemoryError() }.up().sent("check-in").first())
        assertEquals(listOf("shoal ${properties["shoal.version"]}", "1.1", "3.14.0"), listOf(checkIn.client, checkIn.protocol, checkIn.app))
    }

    @Test
    fun `a failed plan is reported with type, place, memory and versions, at most once a minute`() {
        val device = device(health = Health(app = "3.14.0")) { OutOfMemoryError("Failed to allocate 98 bytes") }.up()
        device.fail()
        val report = errors(device).single()
        assertEquals(listOf("Plan failed", "OutOfMemoryError", "Failed to allocate 98 bytes"), listOf(report.what, report.error, report.message))
        assertEquals(Pair(BuildVersion.CLIENT, "3.14.0"), Pair(report.client, report.app))
        assertTrue(report.frames.last().startsWith("ErrorReportsTest.kt:"), report.frames.toString())
        assertTrue(report.frames.none { "/" in it })
        if (File("/proc/self/status").exists()) assertTrue(report.peakBytes!! in 1..report.memoryBytes!!)
        device.fail(2)
        assertEquals(emptyList(), errors(device), "within a minute")
        device.after(60.0)
        assertEquals(1, errors(device).size)
        device.after(600.0)
        assertEquals(emptyList(), errors(device), "it is said once")
    }

    @Test
    fun `a report survives the end of the client, and follows each check-in`() {
        val device = device { IllegalStateException("no delegate") }
        device.up()
        device.fail()
        val again = FakeAggregator(FolderStorage(folder)).up()
        assertEquals(errors(device).single(), errors(again).single())
    }

    @Test
    fun `an owner who forbids it reports no text of an error`() {
        val device = device(Policy(reportErrors = false)) { IllegalStateException("pulse 98.6 of Anna") }.up()
        device.fail()
        val decline = device.declines().single()
        assertEquals(Pair(DeclineReason.FAILED, ""), Pair(decline.reason, decline.detail))
        device.deliver(device.topics.device("phone", "release"), Fixture.release(7))
        device.offer()
        assertEquals(ErrorReports.WITHHELD, decode<InUse>(device.sent("in-use").last()).problem)
        assertTrue(device.link.published.none { "Anna" in it.second.decodeToString() })
        assertEquals(emptyList(), errors(device))
    }

    @Test
    fun `a client that was killed at work says so at its next start, once`() {
        val storage = FolderStorage(folder)
        val dying = object : Storage by storage {
            override fun save(session: Session) {
                storage.save(session)
                if (session.underWay) throw Killed()
            }
        }
        val device = FakeAggregator(dying).up()
        assertFailsWith<Killed> { device.fail() }
        val health = { Health(lastExit = "Android ended it: low memory") }
        val killed = errors(FakeAggregator(storage, health = health).up()).single()
        assertEquals("Killed", killed.error)
        assertEquals("the client ended while it worked on round 1: Android ended it: low memory", killed.message)
        assertEquals(killed, errors(FakeAggregator(storage, health = { Health() }).up()).single(), "the same, not another one")
    }

    /** Simulated end of the process. */
    private class Killed : Error()
}
