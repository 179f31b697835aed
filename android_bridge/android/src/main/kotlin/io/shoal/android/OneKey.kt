package io.shoal.android

import java.net.Socket
import java.security.KeyStore
import java.security.Principal
import java.security.PrivateKey
import java.security.cert.X509Certificate
import javax.net.ssl.SSLEngine
import javax.net.ssl.X509ExtendedKeyManager

/**
 * Key manager that shows a broker the certificate of the key under [alias], and never another key
 * of the store.
 */
internal class OneKey(private val store: KeyStore, private val alias: String) : X509ExtendedKeyManager() {
    override fun getCertificateChain(name: String): Array<X509Certificate>? =
        if (name == alias) store.getCertificateChain(alias)?.map { it as X509Certificate }?.toTypedArray() else null

    override fun getPrivateKey(name: String): PrivateKey? = if (name == alias) store.getKey(alias, null) as? PrivateKey else null

    override fun getClientAliases(keyType: String, issuers: Array<Principal>?): Array<String>? = arrayOf(alias).takeIf { fits(arrayOf(keyType)) }

    override fun chooseClientAlias(keyTypes: Array<String>, issuers: Array<Principal>?, socket: Socket?): String? =
        alias.takeIf { fits(keyTypes) }

    override fun chooseEngineClientAlias(keyTypes: Array<String>, issuers: Array<Principal>?, engine: SSLEngine?): String? =
        alias.takeIf { fits(keyTypes) }

    override fun getServerAliases(keyType: String, issuers: Array<Principal>?): Array<String>? = null

    override fun chooseServerAlias(keyType: String, issuers: Array<Principal>?, socket: Socket?): String? = null

    /**
     * Return true if the key's type is among [keyTypes]. TLS calls it `EC`, and appends the kind of
     * its signature after a `_`.
     */
    private fun fits(keyTypes: Array<String>): Boolean =
        store.getCertificate(alias)?.publicKey?.algorithm.let { type -> keyTypes.any { it.substringBefore('_') == type } }
}
