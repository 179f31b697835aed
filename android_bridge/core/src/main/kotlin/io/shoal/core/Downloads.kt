package io.shoal.core

import io.shoal.core.wire.Topics
import io.shoal.core.wire.digest
import java.io.IOException

/**
 * The blobs that the device lacks: subscribed to, and asked for again by [fetch]. One that has not come though it was asked for three times
 * may never come. It is still asked for, but it is no longer [expected].
 */
internal class Downloads(
    private val topics: Topics,
    private val link: Link,
    private val storage: Storage,
    private val log: Log,
    private val fetch: (String) -> Unit,
) {
    /** By digest, how often each was asked for. */
    private val wanted = sortedMapOf<String, Int>()

    /** Whether something is missing. */
    val open: Boolean get() = wanted.isNotEmpty()

    /** Whether something that is missing may still come. */
    val expected: Boolean get() = wanted.values.any { it < MOST_ASKS }

    /** Whether none of these blobs is waited for. */
    fun has(names: Set<String>): Boolean = names.none { it in wanted }

    /** Waits for these blobs, as far as they are not here, and for no others: what an earlier plan needed may never come. Whether one is new. */
    fun want(names: Set<String>): Boolean {
        val missing = names.filterNot(storage::hasBlob)
        val (gone, new) = Pair(wanted.keys - missing.toSet(), missing - wanted.keys)
        wanted -= gone
        new.forEach { wanted[it] = 0 }
        if (gone.isNotEmpty()) link.unsubscribe(gone.map(topics::blob))
        if (new.isNotEmpty()) link.subscribe(new.map(topics::blob))
        return new.isNotEmpty()
    }

    /** Takes a blob that came, if it is waited for and its hash is its name. */
    fun onBlob(name: String, payload: ByteArray) {
        if (name !in wanted) return
        if (digest(payload) != name) {
            log.write(Log.Level.WARNING, "ignored a blob whose hash is not its name: $name")
            return
        }
        try {
            storage.putBlob(name, payload)
        } catch (error: IOException) { // it is asked for again later; there may be room then
            log.write(Log.Level.WARNING, "cannot store blob $name of ${payload.size} bytes: $error")
            return
        }
        wanted -= name
        link.unsubscribe(listOf(topics.blob(name)))
    }

    /** Asks for everything that is missing. */
    fun ask() {
        wanted.keys.forEach(fetch)
        wanted.replaceAll { _, asks -> asks + 1 }
    }

    private companion object {
        const val MOST_ASKS = 3
    }
}
