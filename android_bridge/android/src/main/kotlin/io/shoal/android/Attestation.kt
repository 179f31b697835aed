package io.shoal.android

import android.content.Context
import io.shoal.core.ConfigException

/**
 * Who says of this app and phone that they are what they seem, when the phone enrols: Play Integrity, for instance. A service may require it
 * (`shoal serve --enrol-attestation`). An app implements it over its provider's library; it is made by its public constructor without parameters.
 */
public fun interface Attestation {
    /**
     * The provider's word about [nonce], as text of at most 16 KiB. It may block.
     *
     * @throws ConfigException it cannot be had: the phone tries again later
     */
    @Throws(ConfigException::class)
    public fun attest(context: Context, nonce: String): String
}
