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
import javax.net.ssl.TrustManager
import javax.net.ssl.TrustManagerFactory
import javax.net.ssl.X509TrustManager

/** The service at [address] (`https://HOST[:PORT]`), spoken to over HTTPS. */
internal class EnrolmentService(private val address: String) {
    private val root: URL = try {
        URL(address).also { if (it.protocol != "https" || it.host.isEmpty() || it.path.trim('/').isNotEmpty()) throw MalformedURLException() }
    } catch (_: MalformedURLException) {
        throw ConfigException("address '$address': expected https://HOST[:PORT]")
    }

    /**
     * The certificate of the service's authority, whose SHA-256 is [fingerprint]. What comes is public, and is judged by that alone.
     *
     * @throws LinkException the service cannot be reached
     * @throws ConfigException another one answers
     */
    fun authority(fingerprint: String): X509Certificate {
        val certificate = try {
            certificateOf(exchange("/enrolment/authority", null, arrayOf(Anybody), verifies = false).decodeToString())
        } catch (_: Malformed) {
            throw ConfigException("$address: it answers no certificate: is it where devices are enrolled?")
        }
        val found = digest(certificate.encoded)
        if (found != fingerprint) {
            val told = "another service is there, its authority was made anew, or somebody is in between"
            throw ConfigException("$address: its authority has the fingerprint ${found.take(16)}, expected ${fingerprint.take(16)}: $told")
        }
        return certificate
    }

    /**
     * Posts [message] to a service that [authority] has issued its certificate to; the answer's bytes.
     *
     * @throws LinkException the service cannot be reached, or another one answers
     */
    fun post(path: String, message: String, authority: X509Certificate): ByteArray {
        val store = KeyStore.getInstance(KeyStore.getDefaultType()).apply {
            load(null, null)
            setCertificateEntry("authority", authority)
        }
        val trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm()).apply { init(store) }.trustManagers
        return exchange(path, message.toByteArray(), trust, verifies = true)
    }

    private fun exchange(path: String, body: ByteArray?, trust: Array<TrustManager>, verifies: Boolean): ByteArray {
        val port = if (root.port == -1) DEFAULT_PORT else root.port
        val connection = URL("https", root.host, port, path).openConnection() as HttpsURLConnection
        connection.sslSocketFactory = SSLContext.getInstance("TLS").apply { init(null, trust, null) }.socketFactory
        if (!verifies) connection.setHostnameVerifier { _, _ -> true }
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
            return stream?.use(::bounded) ?: throw LinkException("$address: it answers ${connection.responseCode}, and nothing more")
        } catch (error: SSLException) {
            throw LinkException("$address: it is not the service that was expected, or this device's clock is wrong: ${error.message}", error)
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
            if (out.size() > MOST_BYTES) throw IOException("more than $MOST_BYTES bytes")
        }
    }

    private object Anybody : X509TrustManager {
        override fun checkClientTrusted(chain: Array<X509Certificate>, authType: String) = Unit

        override fun checkServerTrusted(chain: Array<X509Certificate>, authType: String) = Unit

        override fun getAcceptedIssuers(): Array<X509Certificate> = emptyArray()
    }

    private companion object {
        const val DEFAULT_PORT = 8443
        const val TIMEOUT_MS = 20_000
        const val MOST_BYTES = 24 * 1024
    }
}

/** The first certificate of a PEM text. */
internal fun certificateOf(pem: String): X509Certificate = try {
    CertificateFactory.getInstance("X.509").generateCertificate(ByteArrayInputStream(pem.toByteArray())) as X509Certificate
} catch (error: CertificateException) {
    throw Malformed("certificate: ${error.message}")
}
