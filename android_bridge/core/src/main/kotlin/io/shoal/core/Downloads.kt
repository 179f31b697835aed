package io.shoal.core

import io.shoal.core.wire.Pieces
import io.shoal.core.wire.Topics
import io.shoal.core.wire.WINDOW
import io.shoal.core.wire.digest
import java.io.IOException

/**
 * Blobs that the device lacks. It subscribes to them, and asks for them again by [fetch]. A blob
 * that did not come after three requests may never come: it is still asked for, but no longer
 * [expected].
 *
 * A large blob comes as a list of its pieces, which [openPieces] reads. The device subscribes to
 * the missing pieces, a few at a time, and keeps those that came over restarts.
 */
internal class Downloads(
    private val topics: Topics,
    private val link: Link,
    private val storage: Storage,
    private val log: Log,
    private val openPieces: (ByteArray) -> Pieces,
    private val mostBytes: Int,
    private val fetch: (String) -> Unit,
) {
    /** Number of requests for each missing blob since a part of it came, by digest. */
    private val wanted = sortedMapOf<String, Int>()

    /** Partial blobs, by digest. */
    private val parts = sortedMapOf<String, BlobPart>()

    /** Pieces that the device is subscribed to. */
    private var awaited = emptySet<String>()

    /** True if a blob is missing. */
    val open: Boolean get() = wanted.isNotEmpty()

    /** True if a missing blob may still come. */
    val expected: Boolean get() = wanted.values.any { it < MOST_REQUESTS }

    /** Return true if none of these blobs is missing. */
    fun has(names: Set<String>): Boolean = names.none { it in wanted }

    /**
     * Wait for those of these blobs that are not here, and for no others: a blob of an earlier plan
     * may never come. Return true if one of them is new.
     */
    fun want(names: Set<String>): Boolean {
        val missing = names.filterNot(storage::hasBlob)
        val (gone, new) = Pair(wanted.keys - missing.toSet(), missing - wanted.keys)
        wanted -= gone
        parts -= gone
        new.forEach { wanted[it] = 0 }
        if (gone.isNotEmpty()) link.unsubscribe(gone.map(topics::blob))
        awaitPieces()
        if (new.isNotEmpty()) link.subscribe(new.map(topics::blob))
        return new.isNotEmpty()
    }

    /**
     * Accept a blob, a piece or a list of pieces, and return true if it was of use.
     *
     * @throws LimitExceededException the blob is larger than this device accepts
     */
    fun onBlob(name: String, payload: ByteArray): Boolean {
        if (name !in wanted && name !in awaited) return false
        if (payload.size > mostBytes) throw LimitExceededException("blob $name: ${payload.size} bytes, at most $mostBytes are accepted")
        try {
            if (digest(payload) == name) return store(name, payload)
            return name !in awaited && onPieces(name, payload)
        } catch (error: IOException) { // it is asked for again later; there may be room then
            log.write(Log.Level.WARNING, "Blob not stored: blob=$name bytes=${payload.size}: $error")
            return false
        }
    }

    /**
     * Ask for all missing blobs. [again]: true also asks for the pieces that are under way, and for
     * their lists.
     */
    fun ask(again: Boolean = false) {
        if (again && parts.isNotEmpty()) link.subscribe(parts.keys.map(topics::blob))
        val requested = if (again) wanted.keys + awaited else wanted.keys - parts.keys
        requested.forEach(fetch)
        for (name in requested) wanted.computeIfPresent(name) { _, requests -> requests + 1 }
    }

    private fun onPieces(name: String, payload: ByteArray): Boolean {
        val pieces = try {
            openPieces(payload).also { if (it.digest != name) throw MalformedException("list of the pieces of another blob, ${it.digest}") }
        } catch (error: LimitExceededException) {
            throw error
        } catch (error: WireException) {
            log.write(Log.Level.WARNING, "Blob ignored, its bytes have another hash and list no pieces: blob=$name: ${error.message}")
            return false
        }
        link.unsubscribe(listOf(topics.blob(name)))
        wanted[name] = 0
        if (parts[name]?.pieces != pieces) {
            parts[name] = storage.part(pieces)
            acceptComplete(name)
        }
        return true
    }

    private fun store(name: String, payload: ByteArray): Boolean {
        val changed = parts.filterValues { name in it.pieces.pieces }
        for ((blob, part) in changed) {
            part.missing.filter { part.pieces.pieces[it] == name }.forEach { part.put(it, payload) }
            wanted[blob] = 0
        }
        if (name in wanted) {
            storage.putBlob(name, payload)
            arrived(name)
        }
        changed.keys.forEach(::acceptComplete)
        return true
    }

    /**
     * Accept a blob if all its pieces are here, and wait for the next pieces. If the blob has
     * another hash, it is fetched from the beginning.
     */
    private fun acceptComplete(blob: String) {
        val part = parts[blob]
        if (part != null && part.missing.isEmpty()) {
            if (storage.finish(part)) {
                arrived(blob)
            } else {
                parts -= blob
                link.subscribe(listOf(topics.blob(blob)))
            }
        }
        awaitPieces()
    }

    private fun arrived(name: String) {
        wanted -= name
        parts -= name
        link.unsubscribe(listOf(topics.blob(name)))
    }

    /** Subscribe to the next missing pieces, and unsubscribe from the others. */
    private fun awaitPieces() {
        val unknown = wanted.keys - parts.keys
        val next = parts.values.flatMap { part -> part.missing.take(WINDOW).map { part.pieces.pieces[it] } }.distinct().take(WINDOW).toSet()
        val (over, new) = Pair(awaited - next - unknown, next - awaited - unknown)
        awaited = next
        if (over.isNotEmpty()) link.unsubscribe(over.map(topics::blob))
        if (new.isNotEmpty()) link.subscribe(new.map(topics::blob))
    }

    private companion object {
        const val MOST_REQUESTS = 3
    }
}
