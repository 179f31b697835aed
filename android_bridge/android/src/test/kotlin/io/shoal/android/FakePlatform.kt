package io.shoal.android

import io.shoal.core.BundleException
import io.shoal.core.ConfigException
import io.shoal.core.EnrolmentKey
import io.shoal.core.EnrolmentRefusedException
import io.shoal.core.GraphLoader
import io.shoal.core.Graphs
import io.shoal.core.Tensor
import io.shoal.core.Tensors
import io.shoal.core.wire.Bundle
import org.junit.jupiter.api.Assumptions.assumeTrue
import java.io.File
import java.security.KeyStore
import java.util.Base64
import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.ConcurrentLinkedDeque
import java.util.concurrent.ConcurrentLinkedQueue
import java.util.concurrent.Executor
import kotlin.concurrent.thread

/**
 * Return a file that the Python side wrote for this run (`tests/android/test_layer.py`), or skip
 * the test without it.
 */
internal fun fromPython(name: String): File {
    val folder = System.getProperty("shoal.tests").orEmpty()
    assumeTrue(folder.isNotEmpty(), "the Python side wrote nothing: pytest tests/android/test_layer.py would run this")
    return File(folder, name).also { assumeTrue(it.exists(), "$it is written by another test") }
}

/** Keys that outlive a process, like those of the Android Keystore; keytool makes them. */
internal class TestKeys(private val folder: File, private val store: KeyStore = KeyStore.getInstance("PKCS12").apply { load(null) }) {
    fun key(alias: String): DeviceKey = DeviceKey(store, alias) {
        val keyStore = keyStores.getOrPut(alias) { make(alias) }
        store.setKeyEntry(alias, keyStore.getKey(alias, PASSWORD), null, keyStore.getCertificateChain(alias))
    }

    fun has(alias: String): Boolean = store.containsAlias(alias)

    private fun make(alias: String): KeyStore {
        val file = File(folder.apply { mkdirs() }, "${System.nanoTime()}.p12")
        val program = File(System.getProperty("java.home"), "bin/keytool").path
        val key = listOf("-genkeypair", "-alias", alias, "-dname", "CN=phone-1", "-keyalg", "EC", "-groupname", "secp256r1")
        val process = ProcessBuilder(listOf(program) + key + listOf("-keystore", file.path, "-storepass", "password", "-storetype", "PKCS12"))
        check(process.start().waitFor() == 0)
        return KeyStore.getInstance(file, PASSWORD).also { keyStore ->
            val certificate = keyStore.getCertificate(alias)
            certificates[hex(certificate.publicKey.encoded)] = pem(certificate.encoded)
        }
    }

    companion object {
        private val PASSWORD = "password".toCharArray()
        private val keyStores = ConcurrentHashMap<String, KeyStore>()
        private val certificates = ConcurrentHashMap<String, String>()

        /** Return a certificate for a key that keytool made. */
        fun certificateFor(publicKey: ByteArray): String = certificates.getValue(hex(publicKey))

        private fun hex(bytes: ByteArray) = bytes.joinToString("") { "%02x".format(it) }

        private fun pem(bytes: ByteArray) =
            "-----BEGIN CERTIFICATE-----\n${Base64.getMimeEncoder().encodeToString(bytes)}\n-----END CERTIFICATE-----\n"
    }
}

/**
 * Service that issues a certificate to each token's first key. A test may set functions to run
 * [before] and [after] the answer.
 */
internal class FakeDesk(private val fleet: String, var trust: String = "") : EnrolmentDesk {
    private val used = ConcurrentHashMap<String, String>()
    val requests = ConcurrentLinkedQueue<String>()
    var refusal: String? = null
    var approves = true
    var due = false
    var attested: String? = null
    var before: () -> Unit = {}
    var after: () -> Unit = {}

    @Synchronized
    override fun enrol(token: String, key: EnrolmentKey, wanted: String, attest: ((String) -> String)?): EnrolmentDesk.Credentials? {
        before()
        attested = attest?.invoke("nonce-of-$token")
        requests += token
        refusal?.let { throw EnrolmentRefusedException(it, "https://service refuses: $it") }
        val keyText = key.publicKey.contentToString()
        if (used.getOrPut(token) { keyText } != keyText) throw EnrolmentRefusedException("used", "https://service refuses: used: another key has used this token")
        if (!approves) return null
        after()
        val certificate = TestKeys.certificateFor(key.publicKey)
        return EnrolmentDesk.Credentials(wanted.ifEmpty { "$fleet-1" }, fleet, "mqtts://$fleet.example", certificate, certificate, trust)
    }

    override fun renew(certificate: String, authority: String, key: EnrolmentKey): String {
        before()
        requests += "renewal"
        refusal?.let { throw EnrolmentRefusedException(it, "https://service refuses: $it") }
        return certificate
    }

    override fun isDue(certificate: String): Boolean = due
}

/**
 * Platform that lists a fleet's requests. Files are written when [write] is called, as on another
 * thread.
 */
internal class FakePlatform(private val keys: TestKeys? = null, private val desk: EnrolmentDesk? = null) : Platform {
    val requests = ConcurrentLinkedQueue<String>()
    val assets = ConcurrentHashMap<String, ByteArray>()

    /** Function called before an asset is read. */
    var reading: () -> Unit = {}

    /** Function called before anything is planned or cancelled. */
    var planning: () -> Unit = {}

    /** Function called with each job that is requested. */
    var requesting: (RoundRequest) -> Unit = {}
    private val waiting = ConcurrentLinkedDeque<Runnable>()

    override var isUnlocked = true

    override var disk = Executor { waiting += it }
    override var reader = Executor { if (isUnlocked) it.run() else waiting += it }

    fun write() {
        while (true) (waiting.pollFirst() ?: return).run()
    }

    /** Write on another thread, and return it once it has ended or waits for a lock. */
    fun writing(): Thread = thread { write() }.also { while (it.state !in STOPPED) Thread.sleep(1) }

    override fun schedule(settings: ShoalSettings) {
        planning()
        requests += "jobs"
    }

    override fun request(job: RoundRequest, settings: ShoalSettings) {
        planning()
        requests += "job"
        requesting(job)
    }

    override fun scheduleEnrolment() {
        planning()
        requests += "enrolment"
    }

    override fun scheduleWithdrawal() {
        planning()
        requests += "withdrawal"
    }

    override fun attest(provider: Attestation, nonce: String): String = (provider as FakeAttestation).attestation(nonce)

    override fun cancel() {
        planning()
        requests += "none"
    }

    /** Loader of jobs. */
    var jobLoader: GraphLoader = FirstWeight

    override fun loader(folder: File): GraphLoader = jobLoader

    override fun answering(folder: File): GraphLoader = FirstWeight

    override fun key(alias: String): DeviceKey = keys?.key(alias) ?: throw AssertionError("no key is used")

    override fun desk(service: String): EnrolmentDesk = desk ?: throw AssertionError("nobody enrols")

    override fun asset(name: String): ByteArray {
        reading()
        return assets[name] ?: throw ConfigException("asset '$name': the app has none of this name")
    }

    override var epochNs = 0L

    override fun recorder(fleet: Fleet, spec: WindowSpec, options: RecordingOptions): SensorRecorder = throw AssertionError("nothing is recorded")

    private companion object {
        val STOPPED = setOf(Thread.State.BLOCKED, Thread.State.WAITING, Thread.State.TERMINATED)
    }
}

/** Graphs that answer by their model's first weight w: the first of three classes has the probability 0.5 + w/32. */
internal object FirstWeight : GraphLoader {
    override val runtime = "fake"

    override fun load(bundle: Bundle): Graphs = object : Graphs {
        override val maxBatch: Int? = null

        override fun run(graph: String, inputs: Tensors): Tensors {
            if (graph != "predict") throw BundleException("no graph '$graph'")
            val first = 0.5f + inputs.getValue("shared/w").floats().get(0) / 32
            val rows = inputs.getValue("batch/x").rows
            val answer = FloatArray(3 * rows) { if (it % 3 == 0) first else (1 - first) / 2 }
            return mapOf("output/probabilities" to Tensor.of(answer, listOf(rows, 3)))
        }

        override fun close() = Unit
    }
}

/** Return a token, as `shoal enrol token` prints it, of no service. */
internal fun tokenOf(number: Int): String {
    val body = ByteArray(48) { (number shr 8 * (it % 3)).toByte() }
    val sum = java.security.MessageDigest.getInstance("SHA-256").digest(body).copyOf(3)
    return "shoal1." + Base64.getUrlEncoder().withoutPadding().encodeToString(body + sum)
}

/**
 * Return weights of a model of the fake bundle, all the same number, as `shoal models export --to
 * NAME.safetensors` writes them.
 */
internal fun weightsOf(bundle: Bundle, value: Float): Tensors = bundle.manifest.received().associate { spec ->
    spec.key to Tensor.of(FloatArray(spec.shape.fold(1, Int::times)) { value }, spec.shape)
}

/** Attestation of an app. [failing]: true if its provider cannot be reached. */
internal class FakeAttestation : Attestation {
    override fun attest(context: android.content.Context, nonce: String): String = attestation(nonce)

    fun attestation(nonce: String): String = if (failing) throw ConfigException("no Play services") else "word of $nonce"

    companion object {
        @Volatile var failing = false
    }
}
