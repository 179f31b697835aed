package io.shoal.core.secret

import io.shoal.core.ConfigException
import io.shoal.core.wire.MOST_HELPERS
import java.util.Base64

/** A line with a helper's name, and its public key (PEM), as its `helper.pub` has them. */
private val HELPER = Regex("\\s*helper ([A-Za-z0-9._-]{1,64})\\s*\\n-----BEGIN PUBLIC KEY-----([^-]+)-----END PUBLIC KEY-----\\s*")

/**
 * Return the helpers' keys from the `helper.pub` of each, one after the other.
 *
 * @throws ConfigException the text is no such file, has more than [MOST_HELPERS] helpers, or one twice
 */
internal fun readHelpers(text: String): List<HelperKey> {
    val keys = LinkedHashMap<String, HelperKey>()
    var at = 0
    while (at < text.length || keys.isEmpty()) {
        val one = HELPER.matchAt(text, at)
            ?: throw ConfigException(
                "helpers: line ${text.take(at).count { it == '\n' } + 1}: expected a line 'helper NAME' and a public key (PEM), as helper.pub has them",
            )
        val (name, body) = one.destructured
        if (keys.put(name, keyOf(name, body)) != null) throw ConfigException("helpers: two have the name $name; each is another party with its own")
        at = one.range.last + 1
    }
    if (keys.size > MOST_HELPERS) throw ConfigException("helpers: ${keys.size} are given, at most $MOST_HELPERS are allowed")
    if (keys.values.distinctBy { it.digest }.size < keys.size) throw ConfigException("helpers: two have the same key; each is another party with its own")
    return keys.values.toList()
}

private fun keyOf(name: String, body: String): HelperKey {
    val der = try {
        Base64.getDecoder().decode(body.filterNot { it.isWhitespace() })
    } catch (error: IllegalArgumentException) {
        throw ConfigException("helpers: the key of $name is not PEM: ${error.message}", error)
    }
    return HelperKey(der)
}
