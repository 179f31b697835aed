package io.shoal.android

import io.shoal.android.FleetState.Blocked
import io.shoal.android.FleetState.Waiting
import io.shoal.core.ConfigException
import io.shoal.core.DType
import io.shoal.core.LinkException
import io.shoal.core.Log
import io.shoal.core.Phone
import io.shoal.core.Tensor
import io.shoal.core.Windows
import io.shoal.core.wire.Fields
import io.shoal.core.wire.parseJson
import org.junit.jupiter.api.Tag
import org.junit.jupiter.api.io.TempDir
import java.io.File
import java.time.Duration
import java.util.Collections
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertFalse
import kotlin.test.assertIs
import kotlin.test.assertNotEquals
import kotlin.test.assertNull
import kotlin.test.assertTrue

class EnrolTest {
    @TempDir
    lateinit var root: File

    private val keys by lazy { TestKeys(File(root, "keys")) }
    private val desk = FakeDesk("f")
    private var platform = FakePlatform()
    private val log = Collections.synchronizedList(ArrayList<String>())
    private val tokens = List(2, ::tokenOf)

    /** Return the fleet of a process that has just started, with consent. */
    private fun started(token: String? = tokens[0], desk: EnrolmentDesk = this.desk, name: String = "f", more: FleetBuilder.() -> Unit = {}): Fleet {
        platform = FakePlatform(keys, desk)
        val builder = FleetBuilder(name).enrol("https://service:8443", token).windows(HomeTest.Source::class.java).apply(more)
        return Fleet(name, Home.of(root, name), platform, { level, line -> log += "$level $line" }).also {
            it.configure(builder.build(), builder.token)
            platform.write()
        }
    }

    private fun agreed(token: String? = tokens[0], more: FleetBuilder.() -> Unit = {}): Fleet = started(token, more = more).also {
        it.consent.grant("terms-1")
        platform.write()
    }

    private fun files() = File(root, "fleets").walk().filter(File::isFile).map { it.readText() }.joinToString("\n")

    @Test
    fun `a phone enrols once there is consent, and its jobs then have all that the service gave`() {
        val fleet = started()
        assertEquals(emptyList(), platform.requests.toList())
        fleet.consent.grant("terms-1")
        platform.write()
        assertEquals(listOf("jobs", "enrolment"), platform.requests.toList())
        assertEquals("waiting ENROLMENT", fleet.state.toString())
        assertEquals("", fleet.deviceId)
        assertNull(fleet.enrol())
        assertEquals(listOf("f-1", "mqtts://f.example"), listOf(fleet.deviceId, fleet.settings.broker))
        assertEquals("idle", fleet.state.toString())
        assertNull(fleet.enrol())
        assertEquals(listOf("mqtts://f.example:8883", "f.example"), fleet.address().let { listOf("$it", it.host) })
        val next = started()
        assertEquals(listOf("f-1", "jobs"), listOf(next.deviceId, platform.requests.single()))
        assertNull(next.enrol())
        assertEquals(1, desk.requests.size, "nobody asks again for what is there")
    }

    @Test
    fun `the token is in no log and no setting, and goes once it has served`() {
        val fleet = agreed()
        assertTrue(tokens[0] in files())
        assertFalse(tokens[0] in File(fleet.home.folder, "settings.properties").readText())
        desk.refusal = "busy"
        fleet.enrol()
        desk.refusal = null
        assertIs<Blocked>(fleet.state)
        val fresh = started(tokens[1 % tokens.size])
        fresh.enrol()
        assertFalse(tokens.any { it in files() || it in log.joinToString() })
    }

    @Test
    fun `whatever interrupts it, it goes on, with the same key`() {
        agreed()
        for (fault in listOf({ throw LinkException("no network") }, { throw IllegalStateException("the process is killed") })) {
            desk.before = fault
            assertFalse(started().enrol() == null)
            desk.before = {}
            desk.after = fault // the service has answered, and the phone has not heard it
            assertFalse(started().enrol() == null)
            desk.after = {}
        }
        assertEquals(Waiting.Reason.NETWORK, assertIs<Waiting>(started().also { desk.before = { throw LinkException("no network") } }.enrol()).reason)
        desk.before = {}
        assertNull(started().enrol())
        assertEquals(setOf(tokens[0]), desk.requests.toSet())
    }

    @Test
    fun `what stands in the way has a type, is not asked again, and another token helps`() {
        val reasons = mapOf(
            "token" to Blocked.Reason.TOKEN_UNKNOWN,
            "used" to Blocked.Reason.TOKEN_USED,
            "expired" to Blocked.Reason.TOKEN_EXPIRED,
            "other-name" to Blocked.Reason.NAME_TAKEN,
            "taken" to Blocked.Reason.NAME_TAKEN,
            "banned" to Blocked.Reason.BANNED,
            "rejected" to Blocked.Reason.BANNED,
            "malformed" to Blocked.Reason.SERVICE,
        )
        for ((refusal, reason) in reasons) {
            root.resolve("fleets").deleteRecursively()
            val fleet = agreed()
            desk.refusal = refusal
            assertEquals(reason, assertIs<Blocked>(fleet.enrol()).reason)
            desk.refusal = null
            val requests = desk.requests.size
            assertEquals(reason, assertIs<Blocked>(fleet.enrol()).reason, "and stays")
            val next = started()
            assertEquals(reason, assertIs<Blocked>(next.state).reason, "also in the next process")
            assertEquals(listOf("jobs"), platform.requests.toList())
            assertEquals(requests, desk.requests.size)
            assertNull(started(tokens[1]).enrol())
        }
        assertFailsWith<ConfigException> { FleetBuilder("f").enrol("https://service", "shoal1.x") }
        assertFailsWith<ConfigException> { FleetBuilder("f").enrol("http://service", tokens[0]) }
        assertFailsWith<ConfigException> {
            FleetBuilder("f").enrol("https://service", tokens[0]).broker("mqtts://b").windows(HomeTest.Source::class.java).build()
        }
    }

    @Test
    fun `an attestation is of the service's nonce, and is asked for again where it cannot be had`() {
        val attested: FleetBuilder.() -> Unit = { attestation(FakeAttestation::class.java) }
        agreed(more = attested)
        FakeAttestation.failing = true
        assertEquals(Waiting.Reason.NETWORK, assertIs<Waiting>(started(more = attested).enrol()).reason)
        FakeAttestation.failing = false
        desk.refusal = "attestation"
        assertEquals(Blocked.Reason.ATTESTATION, assertIs<Blocked>(started(more = attested).enrol()).reason)
        desk.refusal = null
        assertNull(started(tokens[1], more = attested).enrol())
        assertEquals("word of nonce-of-${tokens[1]}", desk.attested)
        assertEquals(FakeAttestation::class.java, Home.of(root, "f").settings().attestation, "it outlives the process")
    }

    @Test
    fun `somebody may have to approve the phone`() {
        val fleet = agreed()
        desk.approves = false
        assertEquals(Waiting.Reason.APPROVAL, assertIs<Waiting>(fleet.enrol()).reason)
        desk.approves = true
        assertNull(started().enrol())
    }

    @Test
    fun `a service of another fleet, or of other root keys, is not believed`() {
        val other = FakeDesk("g")
        agreed()
        assertEquals(Blocked.Reason.SERVICE, assertIs<Blocked>(started(desk = other).enrol()).reason)
        val keys = vectorsOfKeys()
        desk.trust = keys[1]
        assertEquals(Blocked.Reason.SERVICE, assertIs<Blocked>(started { trust(keys[0]) }.enrol()).reason)
        desk.trust = keys[0] + keys[1]
        val fleet = started { trust(keys[0]) }
        assertNull(fleet.enrol())
        assertEquals(1, fleet.settings.trusted.size, "the app's count")
        assertEquals(2, started().settings.trusted.size, "without them the service's do")
    }

    private fun vectorsOfKeys() = listOf(
        "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAiojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w=\n-----END PUBLIC KEY-----\n",
        "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAn/rFkoLLld3De0DiKH8u//+pUFKvAcZSdt/7dblJoss=\n-----END PUBLIC KEY-----\n",
    )

    @Test
    fun `who leaves or withdraws while the service answers is not enrolled`() {
        val fleet = agreed()
        desk.after = { fleet.leave() }
        fleet.enrol()
        platform.write()
        assertNull(fleet.home.enrolment.credentials)
        desk.after = {}
        val again = agreed()
        desk.after = { again.consent.withdraw() }
        assertEquals(Blocked.Reason.CONSENT, assertIs<Blocked>(again.enrol()).reason)
        assertNull(again.home.enrolment.credentials)
        desk.after = {}
        again.consent.grant("terms-1")
        assertNull(again.enrol())
    }

    @Test
    fun `settings that the app changes while the service answers hold, with what the service gave`() {
        val fleet = agreed()
        val settings = FleetBuilder("f").enrol("https://service:8443", tokens[0]).windows(HomeTest.Source::class.java).interval(Duration.ofHours(3)).build()
        for (change in listOf({ fleet.configure(settings, tokens[0]) }, { fleet.configure(settings, tokens[0]).also { platform.write() } })) {
            desk.after = change
            assertNull(fleet.enrol())
            assertEquals(listOf(Duration.ofHours(3), "f-1", "mqtts://f.example"), fleet.settings.run { listOf(interval, deviceId, broker) })
            platform.write()
            assertEquals("idle", fleet.state.toString())
            fleet.leave()
            platform.write()
            desk.after = {}
            fleet.configure(FleetBuilder("f").enrol("https://service:8443", tokens[1]).windows(HomeTest.Source::class.java).build(), tokens[0])
            fleet.consent.grant("terms-1")
            platform.write()
        }
    }

    @Test
    fun `a phone without a token waits for one, and later starts need not bring it again`() {
        val first = agreed(null)
        assertEquals(listOf("jobs"), platform.requests.toList())
        assertEquals(listOf("waiting ENROLMENT", "waiting ENROLMENT"), listOf(first.enrol().toString(), first.state.toString()))
        started()
        assertEquals(listOf("jobs", "enrolment"), platform.requests.toList())
        val killed = started(null)
        assertEquals(listOf("jobs", "enrolment"), platform.requests.toList(), "the token waits on disk")
        assertNull(killed.enrol())
        assertNull(started(null).enrol())
        assertEquals(listOf("jobs"), platform.requests.toList())
        assertEquals(1, desk.requests.size)
    }

    @Test
    fun `where the key is gone another token is needed`() {
        assertNull(agreed().enrol())
        keys.key("io.shoal.device.f").delete()
        assertEquals(Blocked.Reason.CERTIFICATE, assertIs<Blocked>(started().enrol()).reason)
        assertNull(started(tokens[1]).enrol())
    }

    @Test
    fun `a certificate is renewed when that is due, and what stands in the way of it does not end work while it lasts`() {
        val fleet = agreed()
        assertNull(fleet.enrol())
        desk.due = true
        assertNull(fleet.enrol())
        assertEquals("renewal", desk.requests.last())
        for (fault in listOf("superseded", "busy")) {
            desk.refusal = fault
            assertNull(fleet.enrol())
        }
        assertTrue(log.any { "the certificate is not renewed" in it })
    }

    @Test
    fun `a secure element that cannot make a key is done without, whatever it throws`() {
        for (thrown in listOf(java.security.ProviderException("full"), IllegalStateException("odd"), java.security.KeyStoreException("-67"))) {
            val tried = ArrayList<Boolean>()
            var undone = 0
            firstThatWorks(listOf(true, false), { undone++ }, Log.SILENT) { strong ->
                tried += strong
                if (strong) throw thrown
            }
            assertEquals(listOf(listOf(true, false), listOf(1)), listOf(tried, listOf(undone)))
        }
        assertFailsWith<IllegalStateException> { firstThatWorks(listOf(true, false), {}, Log.SILENT) { throw IllegalStateException("no key at all") } }
    }

    @Test
    fun `a key asks a secure element for nothing that one may lack`() {
        assertEquals(setOf("NONE", "SHA-256"), KEY_DIGESTS.toSet(), "TLS signs a digest of its own; requests and renewals are SHA256withECDSA")
    }

    /** The real service of the Python side. */
    private val service by lazy { Fields(parseJson(fromPython("enrolment.json").readBytes()), "service") }

    private fun real(token: String, name: String = "default", id: String? = null): Fleet {
        platform = FakePlatform(keys, ServiceDesk(service.string("url")))
        val builder = FleetBuilder(name).enrol(service.string("url"), token).windows(HomeTest.Source::class.java)
        id?.let(builder::deviceId)
        return Fleet(name, Home.of(File(root, token.takeLast(9)), name), platform, { level, line -> log += "$level $line" }).also {
            it.configure(builder.build(), builder.token)
            it.consent.grant("terms-1")
            platform.write()
        }
    }

    @Test
    fun `a real service enrols, renews, and says why it does not`() {
        val fleet = real(service.string("good"), id = "phone-1")
        assertNull(fleet.enrol())
        assertEquals(listOf("phone-1", "mqtts://broker.example"), listOf(fleet.deviceId, fleet.settings.broker))
        assertEquals(1, fleet.settings.trusted.size)
        val first = fleet.home.enrolment.credentials!!.certificate
        assertTrue(keys.key("io.shoal.device.default").holds(first))
        assertNull(fleet.enrol()) // its certificates are short: this one is due at once
        val second = fleet.home.enrolment.credentials!!.certificate
        assertNotEquals(first, second)
        assertTrue(keys.key("io.shoal.device.default").holds(second))
        keys.key("io.shoal.device.default").install(first) // as after a kill between the file and the Keystore
        assertNull(real(service.string("good"), id = "phone-1").enrol())
        assertFalse(keys.key("io.shoal.device.default").holds(first))
        val reasons = listOf("used" to "TOKEN_USED", "bound" to "NAME_TAKEN", "elsewhere" to "SERVICE", "expired" to "TOKEN_EXPIRED", "unknown" to "TOKEN_UNKNOWN")
        for ((token, reason) in reasons) {
            assertEquals(reason, assertIs<Blocked>(real(service.string(token), id = "phone-2").enrol()).reason.name, token)
        }
        assertEquals(Waiting.Reason.APPROVAL, assertIs<Waiting>(real(service.string("approve"), id = "phone-3").enrol()).reason)
        assertEquals(Blocked.Reason.SERVICE, assertIs<Blocked>(real(service.string("clock"), name = "another").enrol()).reason)
    }

    @Test
    @Tag("served")
    fun `a phone enrols at a service, and its job speaks to the broker that this one names`() {
        val served = Fields(parseJson(fromPython("served.json").readBytes()), "served")
        platform = FakePlatform(keys, ServiceDesk(served.string("url")))
        val builder = FleetBuilder("default").enrol(served.string("url"), served.string("token")).trust(served.string("trust"))
        val fleet = Fleet("default", Home.of(root, "default"), platform, { level, line -> log += "$level $line" })
        fleet.configure(builder.windows(HomeTest.Source::class.java).deviceId("phone-7").build(), builder.token)
        fleet.consent.grant("terms-1")
        platform.write()
        assertNull(fleet.enrol())
        val (x, y) = Pair(Tensor.allocate(DType.FLOAT32, listOf(24, 6, 128)), Tensor.of(LongArray(24) { it % 3L }))
        val settings = fleet.settings
        val phone = Phone(
            fleet.deviceId, settings.fleet, fleet.address(), Windows(x, y, x, y), fleet.storage(), FirstWeight, settings.trusted,
            log = { level, line -> log += "$level $line" },
        )
        phone.job(idleMs = 3000, limitMs = 20_000, connectMs = 30_000)
        assertTrue(log.any { "Connected: device=${fleet.deviceId}" in it }, log.joinToString("\n"))
        fleet.consent.withdraw()
        assertTrue(fleet.tellWithdrawal { false }, "the service has confirmed it")
        assertTrue(fleet.consent.isWithdrawalConfirmed)
    }
}
