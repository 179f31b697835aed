package io.shoal.core

import io.shoal.core.wire.digest
import java.io.ByteArrayInputStream
import java.io.ByteArrayOutputStream
import java.io.IOException
import java.io.InputStream
import java.net.MalformedURLException
import java.net.URL
import java.security.KeyStore
import java.security.cert.CertificateException
import java.security.cert.CertificateFactory
import java.security.cert.X509Certificate
import javax.net.ssl.HttpsURLConnection
import javax.net.ssl.SSLContext
import javax.net.ssl.SSLException
import javax.net.ssl.TrustManagerFactory
import javax.net.ssl.X509TrustManager

/** Client of the enrolment service at [address] (`https://HOST[:PORT]`), over HTTPS. */
internal class EnrolmentService(private val address: String) {
    private val root: URL = try {
        URL(address).also { if (it.protocol != "https" || it.host.isEmpty() || it.path.trim('/').isNotEmpty()) throw MalformedURLException() }
    } catch (_: MalformedURLException) {
        throw ConfigException("address must be https://HOST[:PORT], got '$address'")
    }

    /**
     * Connect to the service, which must show the authority with the SHA-256 [fingerprint].
     *
     * @throws LinkException the service cannot be reached, or its certificate is not valid
     * @throws ConfigException its certificate is of another authority
     */
    fun verify(fingerprint: String) {
        exchange("/enrolment/authority", null, fingerprint)
    }

    /**
     * Post [message] to the service and return its answer. Nothing is sent before the service has
     * shown the authority with the SHA-256 [fingerprint], and a certificate that it has signed.
     *
     * @throws LinkException the service cannot be reached, or its certificate is not valid
     * @throws ConfigException its certificate is of another authority
     */
    fun post(path: String, message: String, fingerprint: String): ByteArray = exchange(path, message.toByteArray(), fingerprint)

    private fun exchange(path: String, body: ByteArray?, fingerprint: String): ByteArray {
        val port = if (root.port == -1) DEFAULT_PORT else root.port
        val connection = URL("https", root.host, port, path).openConnection() as HttpsURLConnection
        connection.sslSocketFactory = SSLContext.getInstance("TLS").apply { init(null, arrayOf(OneAuthority(fingerprint)), null) }.socketFactory
        connection.connectTimeout = TIMEOUT_MS
        connection.readTimeout = TIMEOUT_MS
        connection.instanceFollowRedirects = false
        try {
            if (body != null) {
                connection.doOutput = true
                connection.setRequestProperty("Content-Type", "application/json")
                connection.outputStream.use { it.write(body) }
            }
            val stream = if (connection.responseCode < 400) connection.inputStream else connection.errorStream
            return stream?.use(::bounded) ?: throw LinkException("$address: empty answer with HTTP status ${connection.responseCode}")
        } catch (error: SSLException) {
            generateSequence<Throwable>(error, Throwable::cause).firstOrNull { it is OtherAuthorityException }?.let { throw ConfigException("$address: ${it.message}", error) }
            throw LinkException("$address: the TLS connection failed; this is another service, or this device's clock is wrong: ${error.message}", error)
        } catch (error: IOException) {
            throw LinkException("$address: no connection: ${error.message}", error)
        } finally {
            connection.disconnect()
        }
    }

    private fun bounded(stream: InputStream): ByteArray {
        val out = ByteArrayOutputStream()
        val part = ByteArray(4096)
        while (true) {
            val count = stream.read(part)
            if (count < 0) return out.toByteArray()
            out.write(part, 0, count)
            if (out.size() > MOST_BYTES) throw IOException("answer of more than $MOST_BYTES bytes")
        }
    }

    private companion object {
        const val DEFAULT_PORT = 8443
        const val TIMEOUT_MS = 20_000
        const val MOST_BYTES = 24 * 1024
    }
}

/**
 * Trust in servers of the authority whose certificate has the SHA-256 [fingerprint]. A server sends
 * it after its own. The connection compares the host's name, as for every other trust manager.
 */
private class OneAuthority(private val fingerprint: String) : X509TrustManager {
    override fun checkServerTrusted(chain: Array<X509Certificate>, authType: String) {
        val authority = chain.firstOrNull { digest(it.encoded) == fingerprint } ?: throw OtherAuthorityException(fingerprint, digest(chain.last().encoded))
        val store = KeyStore.getInstance(KeyStore.getDefaultType()).apply {
            load(null, null)
            setCertificateEntry("authority", authority)
        }
        val trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm()).apply { init(store) }.trustManagers
        trust.filterIsInstance<X509TrustManager>().first().checkServerTrusted(chain, authType)
    }

    override fun checkClientTrusted(chain: Array<X509Certificate>, authType: String): Unit = throw CertificateException("a device has no clients")

    override fun getAcceptedIssuers(): Array<X509Certificate> = emptyArray()
}

/** Authority of another service. */
private class OtherAuthorityException(expected: String, actual: String) : CertificateException(
    "its authority must have the token's fingerprint ${expected.take(16)}, got ${actual.take(16)}; " +
        "it is another service, its authority is a new one, or somebody intercepts the connection",
)

/** Return the first certificate of a PEM text. */
internal fun certificateOf(pem: String): X509Certificate = try {
    CertificateFactory.getInstance("X.509").generateCertificate(ByteArrayInputStream(pem.toByteArray())) as X509Certificate
} catch (error: CertificateException) {
    throw MalformedException("certificate: ${error.message}")
}
