package io.shoal.android

import android.content.Context
import io.shoal.core.ConfigException

/**
 * Provider of attestations, for example Play Integrity, which confirm that this app and phone are
 * genuine when the phone enrols. A service may require one (`shoal serve --enrol-attestation`). An
 * app implements it over its provider's library, with a public constructor without parameters.
 */
public fun interface Attestation {
    /**
     * Return the provider's attestation for [nonce], as text of at most 16 KiB. A thread of a
     * job calls it, and it may block.
     *
     * @throws ConfigException the provider has no attestation now; the phone tries again later
     */
    @Throws(ConfigException::class)
    public fun attest(context: Context, nonce: String): String
}
