package io.shoal.android

import android.content.Context
import android.content.pm.PackageManager
import android.os.Build
import android.security.keystore.KeyGenParameterSpec
import android.security.keystore.KeyProperties
import io.shoal.core.Log
import java.security.KeyPairGenerator
import java.security.KeyStore
import java.security.spec.ECGenParameterSpec

private const val PROVIDER = "AndroidKeyStore"

/**
 * Digests that the key may sign, which every secure element has: SHA-256 for requests and renewals.
 * TLS hands over a digest of its own, which Android counts as none.
 */
internal val KEY_DIGESTS = arrayOf(KeyProperties.DIGEST_NONE, KeyProperties.DIGEST_SHA256)

/**
 * Return the key of this name in the Android Keystore, in a secure element if the phone has one
 * that can make it.
 */
internal fun androidKey(context: Context, alias: String): DeviceKey {
    val store = KeyStore.getInstance(PROVIDER).apply { load(null) }
    return DeviceKey(store, alias) {
        val strong = Build.VERSION.SDK_INT >= 28 && context.packageManager.hasSystemFeature(PackageManager.FEATURE_STRONGBOX_KEYSTORE)
        firstThatWorks(if (strong) listOf(true, false) else listOf(false), { store.deleteEntry(alias) }) { generate(alias, it) }
    }
}

/**
 * Call [make] with the first of [ways] that throws no error. A secure element may exist and yet
 * fail to make a key, with errors that differ between makers. After any error, [undo] is called and
 * the next way tried. The last error is thrown.
 */
internal fun <T> firstThatWorks(ways: List<T>, undo: () -> Unit, log: Log = LogcatLog, make: (T) -> Unit) {
    for (way in ways.dropLast(1)) {
        try {
            return make(way)
        } catch (error: Exception) {
            log.write(Log.Level.WARNING, "the secure element cannot make a key, one outside it is made: $error")
            undo()
        }
    }
    make(ways.last())
}

private fun generate(alias: String, strong: Boolean) {
    val spec = KeyGenParameterSpec.Builder(alias, KeyProperties.PURPOSE_SIGN)
        .setAlgorithmParameterSpec(ECGenParameterSpec("secp256r1"))
        .setDigests(*KEY_DIGESTS)
    if (strong && Build.VERSION.SDK_INT >= 28) spec.setIsStrongBoxBacked(true)
    KeyPairGenerator.getInstance(KeyProperties.KEY_ALGORITHM_EC, PROVIDER).run {
        initialize(spec.build())
        generateKeyPair()
    }
}
