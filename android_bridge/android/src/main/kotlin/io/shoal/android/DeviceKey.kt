package io.shoal.android

import android.content.Context
import android.content.pm.PackageManager
import android.os.Build
import android.security.keystore.KeyGenParameterSpec
import android.security.keystore.KeyProperties
import android.security.keystore.StrongBoxUnavailableException
import io.shoal.core.ConfigException
import io.shoal.core.signingRequest
import java.io.ByteArrayInputStream
import java.security.KeyPairGenerator
import java.security.KeyStore
import java.security.PrivateKey
import java.security.Signature
import java.security.cert.Certificate
import java.security.cert.CertificateException
import java.security.cert.CertificateFactory
import java.security.spec.ECGenParameterSpec
import javax.net.ssl.KeyManager
import javax.net.ssl.SSLContext
import javax.net.ssl.TrustManagerFactory

/**
 * The device's own key (ECDSA, P-256): made in the Android Keystore, in a secure element where the phone has one, and never outside it.
 * The fleet's authority signs a [request] for it; the certificate then opens the broker's door.
 */
internal class DeviceKey(private val context: Context, private val alias: String) {
    private val store: KeyStore = KeyStore.getInstance(PROVIDER).apply { load(null) }

    /** A certificate signing request (PKCS#10, PEM) whose common name is [deviceId]; the key is made where there is none yet. */
    fun request(deviceId: String): String {
        if (!store.containsAlias(alias)) make()
        val publicKey = store.getCertificate(alias).publicKey.encoded
        return signingRequest(deviceId, publicKey) { bytes ->
            Signature.getInstance("SHA256withECDSA").run {
                initSign(store.getKey(alias, null) as PrivateKey)
                update(bytes)
                sign()
            }
        }
    }

    /**
     * Keeps the certificates (PEM, the device's own first) with the key.
     *
     * @throws ConfigException not certificates, or the first is not for this device's key
     */
    fun install(pem: String) {
        if (!store.containsAlias(alias)) throw ConfigException("certificate: this phone has no key yet; ask for a signing request first")
        val chain = certificates(pem)
        if (!chain[0].publicKey.encoded.contentEquals(store.getCertificate(alias).publicKey.encoded)) {
            throw ConfigException("certificate: it is not for this phone's key")
        }
        store.setKeyEntry(alias, store.getKey(alias, null), null, chain.toTypedArray())
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

    private fun make() {
        val features = context.packageManager
        val strong = Build.VERSION.SDK_INT >= 28 && features.hasSystemFeature(PackageManager.FEATURE_STRONGBOX_KEYSTORE)
        try {
            generate(strong)
        } catch (error: java.security.ProviderException) {
            if (!strong || error !is StrongBoxUnavailableException) throw error
            generate(false) // the secure element is there, but cannot make this kind of key or is full
        }
    }

    private fun generate(strong: Boolean) {
        val spec = KeyGenParameterSpec.Builder(alias, KeyProperties.PURPOSE_SIGN)
            .setAlgorithmParameterSpec(ECGenParameterSpec("secp256r1"))
            .setDigests(KeyProperties.DIGEST_NONE, KeyProperties.DIGEST_SHA256, KeyProperties.DIGEST_SHA384)
        if (strong && Build.VERSION.SDK_INT >= 28) spec.setIsStrongBoxBacked(true)
        KeyPairGenerator.getInstance(KeyProperties.KEY_ALGORITHM_EC, PROVIDER).run {
            initialize(spec.build())
            generateKeyPair()
        }
    }

    private fun certificates(pem: String): List<Certificate> = try {
        CertificateFactory.getInstance("X.509").generateCertificates(ByteArrayInputStream(pem.toByteArray())).toList()
            .ifEmpty { throw ConfigException("certificate: the text holds none") }
    } catch (error: CertificateException) {
        throw ConfigException("certificate: not PEM certificates: ${error.message}", error)
    }

    private companion object {
        const val PROVIDER = "AndroidKeyStore"
    }
}
