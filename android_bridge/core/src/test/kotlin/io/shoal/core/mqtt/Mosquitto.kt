package io.shoal.core.mqtt

import org.junit.jupiter.api.Assumptions.assumeTrue
import java.io.Closeable
import java.io.File
import java.io.IOException
import java.net.ServerSocket
import java.net.Socket
import java.util.concurrent.TimeUnit

/**
 * Real broker on loopback, with a plain listener, and another one with TLS if there are
 * [certificates]. It keeps sessions over [stop] and [start]. [added]: further lines of configuration.
 */
class Mosquitto(private val folder: File, certificates: Certificates? = null, requireCertificate: Boolean = false, added: String = SIZES) : Closeable {
    val port: Int = freePort()
    val tlsPort: Int = freePort()
    private val config = File(folder, "mosquitto.conf")
    private var process: Process? = null

    init {
        assumeTrue(PROGRAM != null, "Mosquitto is not installed: apt-get install mosquitto would run this")
        val tls = certificates?.let {
            "listener $tlsPort 127.0.0.1\nallow_anonymous true\ncafile ${it.authority}\ncertfile ${it.server}\nkeyfile ${it.serverKey}\n" +
                "require_certificate $requireCertificate\n"
        }
        config.writeText(
            "per_listener_settings false\nuser root\npersistence true\npersistence_location $folder/\n" +
                "autosave_interval 1\nautosave_on_changes true\n" +
                "listener $port 127.0.0.1\nallow_anonymous true\n$added${tls.orEmpty()}",
        )
        start()
    }

    fun start() {
        process = ProcessBuilder(PROGRAM, "-c", config.path).redirectErrorStream(true).redirectOutput(File(folder, "mosquitto.log")).start()
        val giveUpNs = System.nanoTime() + 10_000_000_000
        while (true) {
            try {
                return Socket("127.0.0.1", port).close()
            } catch (error: IOException) {
                if (System.nanoTime() > giveUpNs) throw error
                Thread.sleep(30)
            }
        }
    }

    fun stop() {
        process?.apply { destroy() }?.waitFor(10, TimeUnit.SECONDS)
    }

    override fun close() = stop()

    companion object {
        private const val SIZES = "message_size_limit 67108864\nmax_queued_messages 0\n"
        private val PROGRAM = (System.getenv("PATH").split(':') + "/usr/sbin").map { File(it, "mosquitto") }.firstOrNull { it.canExecute() }?.path

        fun freePort(): Int = ServerSocket(0).use { it.localPort }
    }
}

/**
 * Authority, and unless [authorityOnly] a server's certificate for `localhost` alone and a
 * device's, made by the JDK's keytool.
 */
class Certificates(private val folder: File, authorityOnly: Boolean = false) {
    val authority: File = File(folder, "ca.pem")
    val server: File = File(folder, "server.pem")
    val serverKey: File = File(folder, "server.key")
    val device: File = File(folder, "device.pem")
    val deviceKey: File = File(folder, "device.key")

    init {
        folder.mkdirs()
        keytool("-genkeypair", "-alias", "ca", "-dname", "CN=Test authority", "-ext", "bc:c")
        keytool("-exportcert", "-rfc", "-alias", "ca", "-file", authority.path)
        if (!authorityOnly) {
            issue("server", "CN=localhost", "san=dns:localhost", server, serverKey)
            issue("device", "CN=phone", "san=dns:phone", device, deviceKey)
        }
    }

    private fun issue(alias: String, name: String, extension: String, certificate: File, key: File) {
        val request = File(folder, "$alias.csr")
        keytool("-genkeypair", "-alias", alias, "-dname", name)
        keytool("-certreq", "-alias", alias, "-file", request.path)
        keytool("-gencert", "-rfc", "-alias", "ca", "-infile", request.path, "-outfile", certificate.path, "-ext", extension)
        val store = java.security.KeyStore.getInstance(File(folder, "keys.p12"), PASSWORD.toCharArray())
        val encoded = java.util.Base64.getMimeEncoder().encodeToString(store.getKey(alias, PASSWORD.toCharArray()).encoded)
        key.writeText("-----BEGIN PRIVATE KEY-----\n$encoded\n-----END PRIVATE KEY-----\n")
    }

    private fun keytool(vararg arguments: String) {
        val algorithm = if ("-genkeypair" in arguments) listOf("-keyalg", "EC", "-validity", "2") else emptyList()
        val store = listOf("-keystore", File(folder, "keys.p12").path, "-storepass", PASSWORD, "-storetype", "PKCS12")
        val program = File(System.getProperty("java.home"), "bin/keytool").path
        val process = ProcessBuilder(listOf(program, *arguments) + algorithm + store).redirectErrorStream(true).start()
        val printed = process.inputStream.readBytes().decodeToString()
        check(process.waitFor() == 0) { printed }
    }

    private companion object {
        const val PASSWORD = "password"
    }
}
