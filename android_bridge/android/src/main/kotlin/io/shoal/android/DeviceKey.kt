package io.shoal.android

import io.shoal.core.ConfigException
import io.shoal.core.EnrolmentKey
import io.shoal.core.signingRequest
import java.io.ByteArrayInputStream
import java.security.KeyStore
import java.security.PrivateKey
import java.security.Signature
import java.security.cert.Certificate
import java.security.cert.CertificateException
import java.security.cert.CertificateFactory
import javax.net.ssl.KeyManager
import javax.net.ssl.SSLContext
import javax.net.ssl.TrustManagerFactory

/**
 * Device's own key (ECDSA, P-256) in a [store] that it does not leave, under [alias]. [make] makes
 * it there when it is first needed. The fleet's authority signs a [request] for it; the certificate
 * then gives access to the broker.
 */
internal class DeviceKey(private val store: KeyStore, private val alias: String, private val make: () -> Unit) : EnrolmentKey {
    override val publicKey: ByteArray
        get() {
            if (!store.containsAlias(alias)) make()
            return store.getCertificate(alias).publicKey.encoded
        }

    override fun sign(bytes: ByteArray): ByteArray = Signature.getInstance("SHA256withECDSA").run {
        initSign(store.getKey(alias, null) as PrivateKey)
        update(bytes)
        sign()
    }

    /**
     * Return a certificate signing request (PKCS#10, PEM) with the common name [deviceId]. A
     * missing key is made.
     */
    fun request(deviceId: String): String = signingRequest(deviceId, publicKey, ::sign)

    /** Return true if the first of these certificates (PEM) is for this key, and the key exists. */
    fun isOf(pem: String): Boolean =
        store.containsAlias(alias) && certificates(pem)[0].publicKey.encoded.contentEquals(store.getCertificate(alias).publicKey.encoded)

    /** Return true if these certificates are stored with the key. */
    fun holds(pem: String): Boolean = store.containsAlias(alias) && store.getCertificateChain(alias)?.toList() == certificates(pem)

    /**
     * Store the certificates (PEM, the device's own first) with the key.
     *
     * @throws ConfigException they are not certificates, or the first is not for this device's key
     */
    fun install(pem: String) {
        if (!store.containsAlias(alias)) throw ConfigException("certificate: this phone has no key yet; call certificateRequest first")
        if (!isOf(pem)) throw ConfigException("certificate: it is for another key than this phone's")
        store.setKeyEntry(alias, store.getKey(alias, null), null, certificates(pem).toTypedArray())
    }

    /**
     * Return TLS settings with the device's key if [withKey], trusting [caPem], or Android's
     * authorities without it.
     */
    fun tls(caPem: String?, withKey: Boolean): SSLContext {
        val keys = if (withKey) arrayOf<KeyManager>(OneKey(store, alias)) else null
        val trust = caPem?.let { pem ->
            val authorities = KeyStore.getInstance(KeyStore.getDefaultType()).apply { load(null) }
            certificates(pem).forEachIndexed { i, certificate -> authorities.setCertificateEntry("ca$i", certificate) }
            TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm()).run {
                init(authorities)
                trustManagers
            }
        }
        return SSLContext.getInstance("TLS").apply { init(keys, trust, null) }
    }

    /** Delete the key. */
    fun delete() = store.deleteEntry(alias)

    private fun certificates(pem: String): List<Certificate> = try {
        CertificateFactory.getInstance("X.509").generateCertificates(ByteArrayInputStream(pem.toByteArray())).toList()
            .ifEmpty { throw ConfigException("certificate: the text contains no certificate") }
    } catch (error: CertificateException) {
        throw ConfigException("certificate: not PEM certificates: ${error.message}", error)
    }
}
