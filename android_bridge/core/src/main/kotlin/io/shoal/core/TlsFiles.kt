package io.shoal.core

import java.io.File
import java.io.IOException
import java.security.GeneralSecurityException
import java.security.KeyFactory
import java.security.KeyStore
import java.security.PrivateKey
import java.security.cert.Certificate
import java.security.cert.CertificateFactory
import java.security.spec.PKCS8EncodedKeySpec
import java.util.Base64
import javax.net.ssl.KeyManagerFactory
import javax.net.ssl.SSLContext
import javax.net.ssl.TrustManagerFactory

/**
 * TLS settings from PEM files. A key in the Android keystore needs an [SSLContext] of its own
 * instead.
 */
@InternalShoalApi
public object TlsFiles {
    /**
     * Return a context that trusts the authorities in [ca] alone (null: the system's), and shows
     * the certificate in [certificate] with the private key in [key] (PKCS#8, not encrypted).
     *
     * @throws ConfigException a file cannot be read, or has other content
     */
    public fun context(ca: File?, certificate: File? = null, key: File? = null): SSLContext = try {
        if ((certificate == null) != (key == null)) throw ConfigException("TLS files: give both a certificate and its key, or neither")
        val trust = ca?.let { file -> trustManagers(certificates(file)) }
        val keyManagers = if (certificate != null && key != null) keyManagers(certificates(certificate), privateKey(key)) else null
        SSLContext.getInstance("TLS").apply { init(keyManagers, trust, null) }
    } catch (error: IOException) {
        throw ConfigException("TLS files: ${error.message}", error)
    } catch (error: GeneralSecurityException) {
        throw ConfigException("TLS files: ${error.message}", error)
    }

    private fun trustManagers(authorities: List<Certificate>) =
        TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm()).apply {
            init(emptyStore().apply { authorities.forEachIndexed { i, it -> setCertificateEntry("ca$i", it) } })
        }.trustManagers

    private fun keyManagers(chain: List<Certificate>, key: PrivateKey) =
        KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm()).apply {
            init(emptyStore().apply { setKeyEntry("device", key, charArrayOf(), chain.toTypedArray()) }, charArrayOf())
        }.keyManagers

    private fun emptyStore() = KeyStore.getInstance(KeyStore.getDefaultType()).apply { load(null, null) }

    private fun certificates(file: File): List<Certificate> {
        val certificates = file.inputStream().use { CertificateFactory.getInstance("X.509").generateCertificates(it) }.toList()
        return certificates.ifEmpty { throw ConfigException("$file: contains no certificate") }
    }

    private fun privateKey(file: File): PrivateKey {
        val text = file.readText()
        val body = text.substringAfter("-----BEGIN PRIVATE KEY-----", "").substringBefore("-----END PRIVATE KEY-----", "")
        if (body.isBlank()) throw ConfigException("$file: expected a PKCS#8 key; convert it with `openssl pkcs8 -topk8 -nocrypt -in $file`")
        val spec = try {
            PKCS8EncodedKeySpec(Base64.getMimeDecoder().decode(body))
        } catch (error: IllegalArgumentException) {
            throw ConfigException("$file: not PEM: ${error.message}", error)
        }
        for (algorithm in listOf("EC", "RSA")) {
            try {
                return KeyFactory.getInstance(algorithm).generatePrivate(spec)
            } catch (_: GeneralSecurityException) {
                continue // the key is of the other kind
            }
        }
        throw ConfigException("$file: expected an EC or RSA key, got another kind")
    }
}
