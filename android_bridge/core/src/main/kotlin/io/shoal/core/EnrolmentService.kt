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

/** Client of the enrolment service at [address] (`https://HOST[:PORT]`), over HTTPS. */
internal class EnrolmentService(private val address: String) {
    private val root: URL = try {
        URL(address).also { if (it.protocol != "https" || it.host.isEmpty() || it.path.trim('/').isNotEmpty()) throw MalformedURLException() }
    } catch (_: MalformedURLException) {
        throw ConfigException("address must be https://HOST[:PORT], got '$address'")
    }

    /**
     * Return the certificate of the service's authority, which must have the SHA-256 [fingerprint].
     * The download itself is not protected, and needs no protection: the fingerprint decides.
     *
     * @throws LinkException the service cannot be reached
     * @throws ConfigException another service answers
     */
    fun authority(fingerprint: String): X509Certificate {
        val certificate = try {
            certificateOf(exchange("/enrolment/authority", null, arrayOf(Anybody), verifies = false).decodeToString())
        } catch (_: Malformed) {
            throw ConfigException("$address answers without a certificate; is it the address for enrolment?")
        }
        val actual = digest(certificate.encoded)
        if (actual != fingerprint) {
            val causes = "it is another service, its authority is a new one, or somebody intercepts the connection"
            throw ConfigException("$address: its authority must have the token's fingerprint ${fingerprint.take(16)}, got ${actual.take(16)}; $causes")
        }
        return certificate
    }

    /**
     * Post [message] to the service and return its answer. Its certificate must be signed by
     * [authority].
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
            return stream?.use(::bounded) ?: throw LinkException("$address: empty answer with HTTP status ${connection.responseCode}")
        } catch (error: SSLException) {
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

/** Return the first certificate of a PEM text. */
internal fun certificateOf(pem: String): X509Certificate = try {
    CertificateFactory.getInstance("X.509").generateCertificate(ByteArrayInputStream(pem.toByteArray())) as X509Certificate
} catch (error: CertificateException) {
    throw Malformed("certificate: ${error.message}")
}
