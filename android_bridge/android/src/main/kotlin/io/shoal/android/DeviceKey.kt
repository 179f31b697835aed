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
 * The device's own key (ECDSA, P-256) in a [store] that it does not leave, under [alias]; [make] makes it there when it is first needed.
 * The fleet's authority signs a [request] for it; the certificate then opens the broker's door.
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

    /** A certificate signing request (PKCS#10, PEM) whose common name is [deviceId]; the key is made where there is none yet. */
    fun request(deviceId: String): String = signingRequest(deviceId, publicKey, ::sign)

    /** Whether the first of these certificates (PEM) is for this key, which is there. */
    fun isOf(pem: String): Boolean =
        store.containsAlias(alias) && certificates(pem)[0].publicKey.encoded.contentEquals(store.getCertificate(alias).publicKey.encoded)

    /** Whether these are the certificates that are kept with the key. */
    fun holds(pem: String): Boolean = store.containsAlias(alias) && store.getCertificateChain(alias)?.toList() == certificates(pem)

    /**
     * Keeps the certificates (PEM, the device's own first) with the key.
     *
     * @throws ConfigException not certificates, or the first is not for this device's key
     */
    fun install(pem: String) {
        if (!store.containsAlias(alias)) throw ConfigException("certificate: this phone has no key yet; ask for a signing request first")
        if (!isOf(pem)) throw ConfigException("certificate: it is not for this phone's key")
        store.setKeyEntry(alias, store.getKey(alias, null), null, certificates(pem).toTypedArray())
    }

    /** TLS with the device's key where it has a certificate ([withKey]), trusting [caPem], or Android's authorities without one. */
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

    /** Makes the key unusable for good. */
    fun delete() = store.deleteEntry(alias)

    private fun certificates(pem: String): List<Certificate> = try {
        CertificateFactory.getInstance("X.509").generateCertificates(ByteArrayInputStream(pem.toByteArray())).toList()
            .ifEmpty { throw ConfigException("certificate: the text holds none") }
    } catch (error: CertificateException) {
        throw ConfigException("certificate: not PEM certificates: ${error.message}", error)
    }
}
