package io.shoal.android

import io.shoal.core.ConfigException
import io.shoal.core.FolderStorage
import io.shoal.core.Session
import io.shoal.core.signingRequest
import io.shoal.core.wire.Policy
import org.junit.jupiter.api.io.TempDir
import java.io.File
import java.io.IOException
import java.security.KeyPairGenerator
import java.security.KeyStore
import java.security.Signature
import java.security.spec.ECGenParameterSpec
import java.time.Duration
import java.util.Base64
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertFalse
import kotlin.test.assertTrue

class ForegroundTest {
    private val hourMs = 60 * 60_000L

    @Test
    fun `in the background a job ends before ten minutes on every version`() {
        for (sdk in 26..36) assertEquals(8 * 60_000L, ForegroundRules(sdk).limitMs(foreground = false, wantedMs = hourMs, usedMs = 0))
    }

    @Test
    fun `from API 35 on six hours a day are all`() {
        assertEquals(hourMs, ForegroundRules(34).limitMs(true, hourMs, usedMs = 23 * hourMs))
        assertEquals(hourMs, ForegroundRules(35).limitMs(true, hourMs, usedMs = 0))
        assertEquals(45 * 60_000L, ForegroundRules(35).limitMs(true, hourMs, usedMs = 5 * hourMs))
        assertEquals(0, ForegroundRules(36).limitMs(true, hourMs, usedMs = 6 * hourMs))
        assertFalse(ForegroundRules(35).worthAsking(usedMs = 6 * hourMs))
        assertTrue(ForegroundRules(34).worthAsking(usedMs = 6 * hourMs))
    }

    @Test
    fun `from API 36 on a job that runs without a charger keeps to the background's time`() {
        for (sdk in 26..35) assertEquals(hourMs, ForegroundRules(sdk).limitMs(true, hourMs, usedMs = 0, charging = false))
        assertEquals(8 * 60_000L, ForegroundRules(36).limitMs(true, hourMs, usedMs = 0, charging = false))
        assertEquals(hourMs, ForegroundRules(36).limitMs(true, hourMs, usedMs = 0, charging = true))
    }

    @Test
    fun `a warm phone begins nothing and a hot one ends what it does`() {
        var (status, battery, now) = Triple(0, 30.0 as Double?, 0L)
        fun heat(sdk: Int) = Heat(sdk, { status }, { battery }, { now })
        val old = Heat(28, { throw AssertionError("Android 9 has no such thing") }, { battery }, { now })
        assertFalse(heat(29).forbidsStart() || heat(29).ends() || old.forbidsStart() || old.ends())
        status = 2
        assertTrue(heat(29).forbidsStart())
        assertFalse(heat(29).ends())
        status = 3
        assertTrue(heat(29).ends())
        status = 0
        battery = 43.0
        now = 1_000
        assertEquals(listOf(true, false), listOf(old.forbidsStart(), old.ends()))
        battery = 45.5
        assertFalse(old.ends(), "it looks once a second")
        now = 2_000
        assertTrue(old.ends())
        battery = null
        now = 3_000
        assertFalse(old.ends(), "a battery that says nothing is not hot")
    }

    @Test
    fun `a job in the foreground shows its progress once a second, and goes on where that is refused`() {
        val shown = ArrayList<Pair<Long, Long>>()
        var (now, refusal) = Pair(0L, null as Exception?)
        val job = JobForeground({ step, of ->
            refusal?.let { if (it is IllegalStateException) throw it }
            shown += step to of
            java.util.concurrent.FutureTask { refusal?.let { throw it } }.apply { run() }
        }, { now })
        refusal = IllegalStateException("not now")
        assertEquals("not now", job.begin()!!.message)
        refusal = IOException("refused")
        assertEquals("refused", job.begin()!!.message)
        job.progress(1, 2)
        refusal = null
        shown.clear()
        assertEquals(null, job.begin())
        for (step in 0L..1000L) {
            now += 10
            job.progress(step, 1000)
        }
        assertEquals(11, shown.size, "once a second in ten seconds, after the first")
        refusal = IllegalStateException("the app is in the background")
        now += 5_000
        job.progress(0, 1000)
        assertTrue(foregroundJobs() == null, "without the artefact no job asks")
    }

    @Test
    fun `a type is said from API 29 on`() {
        assertEquals(listOf(false, true, true), listOf(28, 29, 34).map { ForegroundRules(it).typed })
    }

    @Test
    fun `only the last day counts, and survives writing`() {
        val now = 100 * hourMs
        val times = ForegroundTimes().plus(now - 25 * hourMs, now - 23 * hourMs).plus(now - 2 * hourMs, now - hourMs)
        assertEquals(2 * hourMs, times.usedMs(now))
        assertEquals(2 * hourMs, ForegroundTimes.parse(times.toString()).usedMs(now))
        assertEquals(0, ForegroundTimes.parse("what is this").usedMs(now))
        assertEquals(hourMs, times.plus(now + 20 * hourMs, now + 20 * hourMs).usedMs(now + 21 * hourMs))
    }
}

class HomeTest {
    @TempDir
    lateinit var folder: File

    class Source : WindowSource {
        override fun load(context: android.content.Context, fleet: String) = null
    }

    private fun settings(
        broker: String = "mqtts://b:1",
        fleet: String = "f",
        key: String? = KEY,
        insecure: Boolean = false,
        policy: Policy? = null,
    ) = ShoalSettings(broker, fleet, Source::class.java, null, key, interval = Duration.ofHours(12), requireIdle = true, insecure = insecure, policy = policy)

    @Test
    fun `settings are kept as they were`() {
        val home = Home(folder)
        assertFailsWith<ConfigException> { home.settings() }
        val policy = Policy(verbs = listOf("train", "protect"), maxClipNorm = 0.5, maxBytesADay = 5_000_000)
        for (settings in listOf(settings(key = "a\nb=é", policy = policy), settings("mqtt://b", key = null, insecure = true))) {
            home.save(settings)
            assertEquals(settings.write(), Home(folder).settings().write())
            assertEquals(settings.policy, Home(folder).settings().policy)
        }
    }

    @Test
    fun `the end of the app's process is explained by memory where Android does so`() {
        assertTrue("lack of memory (exit -9)" in DeviceHealth.exitText(3, 0))
        assertTrue("exit -9" in DeviceHealth.exitText(2, 9))
        assertEquals("the app's process ended with Android's reason 2 and status 15", DeviceHealth.exitText(2, 15))
    }

    @Test
    fun `a random id stays, and leaving forgets all but recordings`() {
        val home = Home(folder)
        home.save(settings())
        val id = home.deviceId(home.settings())
        assertEquals(id, Home(folder).deviceId(home.settings()))
        home.noteState(FleetState.Waiting(FleetState.Waiting.Reason.NETWORK))
        assertEquals(id, Home(folder).deviceId(home.settings()))
        assertEquals("waiting NETWORK", home.lastState.toString())
        val storage = FolderStorage(home.state(home.settings()))
        File(home.recordings.apply { mkdirs() }, "r.csv").writeText("x")
        home.clear(recordings = false)
        assertFailsWith<IOException>("a storage that is open makes no folder anew") { storage.save(Session()) }
        home.noteState(FleetState.Uploading)
        home.foregroundTimes = ForegroundTimes()
        assertEquals(listOf("recordings"), folder.list()!!.toList())
        assertFalse(home.hasSettings)
        assertEquals("idle", home.lastState.toString())
    }

    @Test
    fun `each fleet and broker has a state of its own`() {
        val home = Home(folder)
        val variants = listOf(settings(), settings(fleet = "g"), settings("mqtts://c:1"), settings("mqtts://b:2"))
        val states = variants.map(home::state)
        assertEquals(4, states.toSet().size)
        assertEquals(states[0], home.state(settings("mqtts://user:password@b:1")), "who logs in does not matter")
        assertEquals(states[0], home.state(settings("mqtts://b:1?max_packet=65536&version=5")), "nor does a limit")
        for ((state, each) in states.zip(variants)) assertTrue(state.name.startsWith("${each.fleet}-"))
    }

    @Test
    fun `settings that cannot be used are refused`() {
        assertFailsWith<ConfigException> { checkName("fleet", "..") }
        assertFailsWith<ConfigException> { FleetBuilder("f").broker("mqtts://b").trust(KEY).build() }
        assertFailsWith<ConfigException> { FleetBuilder("f").broker("mqtts://b").trust("no key").windows(Source::class.java).build() }
        val built = FleetBuilder("f").broker("mqtts://b").trust(KEY).windows(Source::class.java).interval(Duration.ofHours(3)).build()
        assertEquals(ShoalSettings("mqtts://b", "f", Source::class.java, null, KEY, interval = Duration.ofHours(3)).write(), built.write())
        val named = FleetBuilder("f").broker("mqtts://b").login("me", "#?/@%").trust(KEY).windows(Source::class.java).build()
        assertEquals(BrokerLogin("me", "#?/@%"), ShoalSettings.read(named.write()).login)
        assertFalse("#?/" in named.toString())
        val shown = assertFailsWith<ConfigException> { settings("mqtt://me:secret@b") }
        assertFalse("secret" in shown.message!!)
        assertFailsWith<ConfigException> { settings(fleet = "f/g") }
        assertFailsWith<ConfigException> { ShoalSettings("mqtts://b", "f", Source::class.java, trustedKeyPem = KEY, interval = Duration.ofMinutes(59)) }
        assertFailsWith<ConfigException> {
            ShoalSettings("mqtts://b", "f", Source::class.java, trustedKeyPem = KEY, idleTimeout = Duration.ofMinutes(5), maxDuration = Duration.ofMinutes(1))
        }
        assertFailsWith<ConfigException> { settings(key = "no key").trusted }
        assertEquals(2, settings(key = KEY + KEY).trusted.size)
    }

    @Test
    fun `an owner who permits secret sums alone needs helpers, and these are kept`() {
        fun builder() = FleetBuilder("f").broker("mqtts://b").trust(KEY).windows(Source::class.java)
        val error = assertFailsWith<ConfigException> { builder().policy { minSum(5) }.build() }
        assertTrue("set helpers" in error.message!!, error.message)
        assertFailsWith<ConfigException> { builder().policy { minSum(0) } }
        assertFailsWith<ConfigException> { builder().helpers(KEY).build() }
        assertFailsWith<ConfigException> { builder().helpers("helper one\n$KEY").build() } // that is no P-256 key
        val built = builder().helpers(HELPER).policy { minSum(5) }.build()
        assertEquals(Pair(HELPER, 5L), ShoalSettings.read(built.write()).run { Pair(helpers, policy?.minSum) })
        assertEquals(null, ShoalSettings.read(builder().build().write()).helpers)
    }

    @Test
    fun `what is not secure has to be said`() {
        assertFailsWith<ConfigException> { settings(key = null) }
        assertFailsWith<ConfigException> { settings("mqtt://b") }
        assertEquals(emptyList(), settings("mqtt://b", key = null, insecure = true).trusted)
        settings("mqtts://b")
    }

    private companion object {
        const val KEY = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAiojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w=\n-----END PUBLIC KEY-----\n"

        /** The `helper.pub` of a helper. */
        val HELPER = KeyPairGenerator.getInstance("EC").apply { initialize(ECGenParameterSpec("secp256r1")) }.generateKeyPair().public.encoded.let {
            "helper one\n-----BEGIN PUBLIC KEY-----\n${Base64.getMimeEncoder().encodeToString(it)}\n-----END PUBLIC KEY-----\n"
        }
    }
}

class OneKeyTest {
    @TempDir
    lateinit var folder: File

    @Test
    fun `only the device's own certificate is shown`() {
        val file = File(folder, "keys.p12")
        for (alias in listOf("another", "device")) {
            val options = listOf("-genkeypair", "-alias", alias, "-dname", "CN=$alias", "-keyalg", "EC", "-keystore", file.path)
            val program = File(System.getProperty("java.home"), "bin/keytool").path
            val process = ProcessBuilder(listOf(program) + options + listOf("-storepass", "password", "-storetype", "PKCS12")).start()
            assertEquals(0, process.waitFor())
        }
        val store = KeyStore.getInstance(file, "password".toCharArray())
        val keys = OneKey(store, "device")
        assertEquals("device", keys.chooseClientAlias(arrayOf("RSA", "EC"), null, null))
        assertEquals("device", keys.chooseEngineClientAlias(arrayOf("EC_EC"), null, null))
        assertEquals(null, keys.chooseClientAlias(arrayOf("RSA"), null, null))
        assertEquals("CN=device", keys.getCertificateChain("device")!!.single().subjectX500Principal.name)
        assertEquals(null, keys.getCertificateChain("another"))
        assertEquals(null, keys.getPrivateKey("another"))
    }
}

class SigningRequestTest {
    @Test
    fun `a request is what other libraries read`() {
        val key = KeyPairGenerator.getInstance("EC").run {
            initialize(ECGenParameterSpec("secp256r1"))
            generateKeyPair()
        }
        val request = signingRequest("phone-1", key.public.encoded) { bytes ->
            Signature.getInstance("SHA256withECDSA").run {
                initSign(key.private)
                update(bytes)
                sign()
            }
        }
        val target = System.getProperty("shoal.tests").orEmpty()
        if (target.isNotEmpty()) File(target, "request.pem").writeText(request) // checked by tests/android/test_layer.py
        assertTrue(request.startsWith("-----BEGIN CERTIFICATE REQUEST-----\n"))
    }
}
