package io.shoal.core

import io.shoal.core.wire.Fields
import io.shoal.core.wire.digest
import io.shoal.core.wire.parseJson
import org.junit.jupiter.api.io.TempDir
import java.io.File
import java.io.IOException
import java.net.InetAddress
import java.security.KeyStore
import java.security.PrivateKey
import java.security.cert.X509Certificate
import java.util.Base64
import java.util.Random
import java.util.concurrent.LinkedBlockingQueue
import javax.net.ssl.KeyManagerFactory
import javax.net.ssl.SSLContext
import kotlin.concurrent.thread
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue

/** Services with certificates of many kinds, made by keytool. */
class EnrolmentServiceTest {
    @TempDir
    lateinit var folder: File

    private val authority by lazy { Authority("authority") }

    /** Authority of the same name, made by somebody else. */
    private val other by lazy { Authority("other") }

    private fun keytool(arguments: List<String>, input: String = ""): String {
        val program = File(System.getProperty("java.home"), "bin/keytool").path
        val process = ProcessBuilder(listOf(program) + arguments).redirectError(ProcessBuilder.Redirect.DISCARD).start()
        process.outputStream.use { it.write(input.toByteArray()) }
        val output = process.inputStream.readBytes().decodeToString()
        check(process.waitFor() == 0) { "keytool $arguments: $output" }
        return output
    }

    /** Return the options of keytool that name the store of a key. */
    private fun store(name: String) =
        listOf("-alias", name, "-keystore", File(folder, "$name.p12").path, "-storepass", "password", "-storetype", "PKCS12")

    private fun keyPair(name: String, subject: String, vararg extensions: String) =
        keytool(listOf("-genkeypair", "-dname", subject, "-keyalg", "EC", "-groupname", "secp256r1") + extensions.flatMap { listOf("-ext", it) } + store(name))

    private inner class Authority(private val name: String) {
        init {
            keyPair(name, "CN=authority", "bc:c=ca:true", "ku:c=keyCertSign")
        }

        val certificate by lazy { certificateOf(keytool(listOf("-exportcert", "-rfc") + store(name))) }
        val fingerprint by lazy { digest(certificate.encoded) }

        fun issue(vararg extensions: String, validity: List<String> = listOf("-validity", "30")): X509Certificate =
            certificateOf(keytool(listOf("-gencert", "-rfc") + validity + extensions.flatMap { listOf("-ext", it) } + store(name), request))
    }

    /** Request of the servers' key. */
    private val request by lazy {
        keyPair("server", "CN=server")
        keytool(listOf("-certreq") + store("server"))
    }

    /** Server on this machine that shows [chain], gives [answers] in turn and again, and lists what it is sent. */
    private inner class Server(chain: List<X509Certificate>, answers: List<ByteArray> = listOf(answer("{}"))) : AutoCloseable {
        val requests = LinkedBlockingQueue<String>()
        private val password = "password".toCharArray()
        private val key = KeyStore.getInstance(File(folder, "server.p12"), password).getKey("server", password) as PrivateKey
        private val store = KeyStore.getInstance("JKS").apply {
            load(null)
            setKeyEntry("server", key, password, chain.toTypedArray())
        }
        private val keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm()).apply { init(store, password) }.keyManagers
        private val socket = SSLContext.getInstance("TLS").apply { init(keys, null, null) }.serverSocketFactory
            .createServerSocket(0, 1, InetAddress.getByName("localhost"))
        val url = "https://localhost:${socket.localPort}"
        private val serving = thread(isDaemon = true) {
            for (answer in generateSequence(answers) { it }.flatten()) {
                try {
                    socket.accept().use { connection ->
                        connection.soTimeout = 5_000
                        val head = connection.getInputStream().bufferedReader().lineSequence().takeWhile { it.isNotEmpty() }.toList()
                        head.firstOrNull()?.let(requests::add)
                        if (head.isNotEmpty()) connection.getOutputStream().write(answer)
                    }
                } catch (_: IOException) { // the device does not go on
                    if (socket.isClosed) break
                }
            }
        }

        override fun close() {
            socket.close()
            serving.join()
        }
    }

    private fun answer(body: String) = "HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\nConnection: close\r\n\r\n$body".toByteArray()

    private fun post(chain: List<X509Certificate>): List<String> {
        request
        Server(chain).use { server ->
            try {
                EnrolmentService(server.url).post("/enrolment/enrol", "secret", authority.fingerprint)
            } catch (error: ShoalException) {
                server.close()
                assertEquals(emptyList(), server.requests.toList(), "a service that is refused gets nothing")
                throw error
            }
            return server.requests.toList()
        }
    }

    @Test
    fun `a service of the token's authority is asked, and nobody else gets a byte`() {
        val server = arrayOf("san=dns:localhost", "eku=serverAuth")
        val good = authority.issue(*server)
        assertEquals(listOf("POST /enrolment/enrol HTTP/1.1"), post(listOf(good, authority.certificate)))
        val others = mapOf(
            "another authority" to listOf(other.issue(*server), other.certificate),
            "its authority is not shown" to listOf(good),
        )
        for ((kind, chain) in others) {
            val error = assertFailsWith<ConfigException>(kind) { post(chain) }
            assertTrue("its authority must have the token's fingerprint" in error.message!!, error.message)
        }
        val invalid = mapOf(
            "the authority beside a certificate that it has not signed" to listOf(other.issue(*server), authority.certificate),
            "another host" to listOf(authority.issue("san=dns:elsewhere", "eku=serverAuth"), authority.certificate),
            "a device's certificate" to listOf(authority.issue("san=dns:localhost", "eku=clientAuth"), authority.certificate),
            "one that has ended" to listOf(authority.issue(*server, validity = listOf("-startdate", "-9d", "-validity", "5")), authority.certificate),
        )
        for ((kind, chain) in invalid) assertFailsWith<LinkException>(kind) { post(chain) }
    }

    @Test
    fun `changed answers are read or refused`() {
        val random = Random(11)
        val vectors = Fields(parseJson(File(repository, "wire/vectors/enrolment.json").readBytes()), "enrolment.json")
        val bodies = vectors.strings("answers") + vectors.strings("refused_answers") + """{"type":"waiting"}""" + """{"type":"refused","reason":1}"""
        val answers = bodies.map(::answer) + List(150) { changed(answer(bodies[random.nextInt(bodies.size)]), random) }
        request
        val key = MemoryKey()
        Server(listOf(authority.issue("san=dns:localhost", "eku=serverAuth"), authority.certificate), answers).use { server ->
            val outcomes = answers.map { answer ->
                try {
                    Enrolment(server.url).enrol(token(authority.fingerprint), key)::class
                } catch (error: ShoalException) {
                    assertTrue(error is ConfigException || error is LinkException, "${answer.decodeToString()}: $error")
                    error::class
                }
            }
            assertEquals(setOf(EnrolmentAnswer.Waiting::class, ConfigException::class, LinkException::class, EnrolmentRefusedException::class), outcomes.toSet())
        }
    }

    private fun token(fingerprint: String): String {
        val body = ByteArray(16) + fingerprint.chunked(2).map { it.toInt(16).toByte() }
        val sum = digest(body).take(6).chunked(2).map { it.toInt(16).toByte() }
        return "shoal1." + Base64.getUrlEncoder().encodeToString(body + sum)
    }

    /** Change one to three bytes of an answer, or cut it off; what counts its length stays. */
    private fun changed(answer: ByteArray, random: Random): ByteArray {
        val bytes = answer.copyOf()
        repeat(1 + random.nextInt(3)) { bytes[random.nextInt(bytes.size)] = random.nextInt(256).toByte() }
        return if (random.nextInt(4) == 0) bytes.copyOf(random.nextInt(bytes.size)) else bytes
    }
}
