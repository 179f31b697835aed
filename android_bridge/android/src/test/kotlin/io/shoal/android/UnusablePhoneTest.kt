package io.shoal.android

import io.shoal.android.FleetState.Blocked
import io.shoal.android.FleetState.Waiting
import io.shoal.android.Labels.LabelledTime
import io.shoal.core.ConfigException
import io.shoal.core.DataException
import io.shoal.core.LinkException
import io.shoal.core.Log
import io.shoal.core.UnsupportedException
import io.shoal.executorch.ExecutorchLoader
import org.junit.jupiter.api.io.TempDir
import java.io.File
import java.io.IOException
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertIs
import kotlin.test.assertNull
import kotlin.test.assertTrue

/** A lack of a phone or an app is a state, or an error that the documentation names. */
class UnusablePhoneTest {
    @TempDir
    lateinit var root: File

    private val platform by lazy { FakePlatform(TestKeys(File(root, "keys"))) }

    private fun fleet() = Fleet("f", Home.of(root, "f"), platform, Log.SILENT)

    private fun Fleet.configured() = apply { configure(FleetBuilder("f").broker("mqtt://b").windows(HomeTest.Source::class.java).allowInsecure().build()) }

    @Test
    fun `a phone without ExecuTorch's native library is not supported, each time it is asked`() {
        repeat(2) { // the first time the library is missing, and later the class is
            val error = assertFailsWith<UnsupportedException>("this JVM has no native library") { ExecutorchLoader(root).require() }
            assertTrue("64-bit" in error.message!!, error.message)
            val state = assertIs<Blocked>(stateAfter(error))
            assertEquals(Blocked.Reason.UNSUPPORTED, state.reason)
            assertEquals(state, FleetState.parse(state.write()))
        }
    }

    @Test
    fun `a phone that is not supported does not enrol`() {
        val desk = FakeDesk("f")
        val platform = FakePlatform(TestKeys(File(root, "keys")), desk)
        platform.jobLoader = ExecutorchLoader(root)
        val fleet = Fleet("f", Home.of(root, "f"), platform, Log.SILENT)
        fleet.configure(FleetBuilder("f").enrol("https://service:8443", tokenOf(1)).windows(HomeTest.Source::class.java).build(), tokenOf(1))
        fleet.consent.grant("terms-1")
        platform.write()
        assertEquals(Blocked.Reason.UNSUPPORTED, assertIs<Blocked>(fleet.enrol()).reason)
        assertEquals(emptyList(), desk.requests.toList())
        platform.jobLoader = FirstWeight
        assertNull(fleet.enrol(), "the token is not lost")
    }

    @Test
    fun `consent on a full disk is not granted, and may be granted again`() {
        val fleet = fleet().configured()
        platform.write()
        val folder = Home.of(root, "f").folder
        File(folder, "member.txt/no-room").mkdirs() // the file cannot be written in its place
        fleet.consent.grant("terms-1")
        platform.write()
        assertNull(fleet.consent.version)
        File(folder, "member.txt").deleteRecursively()
        fleet.consent.grant("terms-1")
        platform.write()
        assertEquals("terms-1", Fleet("f", Home.of(root, "f"), platform, Log.SILENT).consent.version)
        File(folder, "member.txt").delete()
        File(folder, "member.txt/no-room").mkdirs()
        fleet.consent.grant("terms-2")
        platform.write()
        assertEquals("terms-1", fleet.consent.version, "the owner's earlier word holds")
    }

    @Test
    fun `every error of a job is a state`() {
        assertEquals(Waiting(Waiting.Reason.NETWORK), stateAfter(LinkException("no broker")))
        assertEquals(Waiting(Waiting.Reason.STORAGE), stateAfter(IOException("disk full")))
        val blocked = mapOf(
            DataException("") to Blocked.Reason.FAILED,
            ConfigException("") to Blocked.Reason.SETTINGS,
            ExceptionInInitializerError() to Blocked.Reason.FAILED,
            OutOfMemoryError() to Blocked.Reason.FAILED,
        )
        for ((error, reason) in blocked) assertEquals(reason, assertIs<Blocked>(stateAfter(error)).reason)
    }

    @Test
    fun `without WorkManager nothing is thrown, and the state says so`() {
        val missing = ConfigException("WorkManager is not initialised")
        platform.planning = { throw missing }
        val fleet = fleet().configured()
        val acts = listOf<Fleet.() -> Unit>(
            { consent.grant("terms-1") },
            { requestTraining() },
            { consent.withdraw() },
            { consent.grant("terms-2") },
            { leave() },
        )
        for ((number, act) in acts.withIndex()) {
            fleet.act()
            platform.write()
            if (fleet.consent.isGranted) assertEquals(Blocked(Blocked.Reason.SETTINGS, missing.message!!), fleet.state, "act $number")
        }
    }

    @Test
    fun `before the phone is unlocked nothing is read, and then all is as it was`() {
        fleet().configured().consent.grant("terms-1")
        platform.write()
        platform.requests.clear()
        platform.isUnlocked = false
        val hidden = File(root, "fleets/f").let { folder -> File(root, "locked").also { check(folder.renameTo(it)) } }
        val fleet = fleet().configured()
        assertEquals(Waiting(Waiting.Reason.UNLOCK), fleet.state)
        assertNull(fleet.consent.version)
        val states = ArrayList<FleetState>()
        fleet.addListener({ states += it }) { it.run() }
        check(hidden.renameTo(File(root, "fleets/f")))
        platform.isUnlocked = true
        platform.write()
        assertEquals("terms-1", fleet.consent.version)
        assertEquals(listOf("jobs"), platform.requests.toList())
        assertEquals(listOf(Waiting(Waiting.Reason.UNLOCK), FleetState.Idle), states)
    }

    @Test
    fun `a phone that was enrolled is, once it is unlocked`() {
        val (token, folder) = tokenOf(1) to File(root, "fleets/f")
        val settings = FleetBuilder("f").enrol("https://service:8443", token).windows(HomeTest.Source::class.java).build()
        EnrolmentFolder { folder }.store(token)
        EnrolmentFolder { folder }.take(token, PhoneCredentials("phone-7", "mqtts://b", "certificate", "authority", "", EnrolmentFolder.hashOf(token)))
        val hidden = File(root, "locked").also { check(folder.renameTo(it)) }
        platform.isUnlocked = false
        val fleet = fleet()
        fleet.configure(settings)
        assertEquals("", fleet.deviceId)
        check(hidden.renameTo(folder))
        platform.isUnlocked = true
        platform.write()
        assertEquals("phone-7", fleet.deviceId)
    }

    @Test
    fun `a second process is refused until the first one ends`() {
        val java = File(System.getProperty("java.home"), "bin/java").path
        val path = Home.of(root, "f").folder.path
        val other = ProcessBuilder(java, "-cp", System.getProperty("java.class.path"), Holder::class.java.name, path).start()
        try {
            assertEquals("claimed", other.inputStream.bufferedReader().readLine())
            val fleet = fleet().configured()
            fleet.consent.grant("terms-1")
            platform.write()
            assertTrue("another process" in assertIs<Blocked>(fleet.state).detail, "${fleet.state}")
            assertTrue("another process" in assertFailsWith<ConfigException> { fleet.model }.message!!)
        } finally {
            other.destroyForcibly().waitFor()
        }
        val fleet = fleet().configured()
        platform.write()
        assertNull(fleet.model)
        assertIs<FleetState.Idle>(fleet.state)
    }

    @Test
    fun `who adds a label hears once it is on disk, or that it cannot be`() {
        val file = File(root, "labels.txt")
        val tasks = ArrayDeque<Runnable>()
        var isWanted = true
        val labels = Labels(Home(root), { tasks += it }, { isWanted }, Log.SILENT)
        val stored = ArrayList<Pair<Boolean, Int>>()
        fun answer(label: String, untilMs: Long = 2) = labels.add(label, 1, untilMs, LabelSource.PROMPT).thenAccept { stored += it to LabelledTime.read(file).size }
        answer("walking")
        assertEquals(emptyList(), stored)
        while (tasks.isNotEmpty()) tasks.removeFirst().run()
        answer("stairs")
        isWanted = false
        answer("stairs")
        assertFailsWith<IllegalArgumentException> { answer("still", untilMs = 0) }
        while (tasks.isNotEmpty()) tasks.removeFirst().run()
        assertEquals(listOf(true to 1, false to 1, false to 1), stored, "consent was withdrawn before the second was written")
        isWanted = true
        file.delete()
        file.mkdirs()
        val outcome = labels.add("still", 1, 2)
        while (tasks.isNotEmpty()) tasks.removeFirst().run()
        assertEquals(false, outcome.getNow(true), "it cannot be written")
    }

    /** Process that holds a fleet's folder until it is killed. */
    internal object Holder {
        @JvmStatic
        fun main(arguments: Array<String>) {
            Home(File(arguments[0])).claim()
            println("claimed")
            System.`in`.read()
        }
    }
}
