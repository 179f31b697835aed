package io.shoal.core

import io.shoal.core.wire.Pieces
import io.shoal.core.wire.Topics
import io.shoal.core.wire.WINDOW
import io.shoal.core.wire.digest
import java.io.IOException

/**
 * The blobs that the device lacks: subscribed to, and asked for again by [fetch]. One that has not come though it was asked for three times
 * may never come. It is still asked for, but it is no longer [expected].
 *
 * In place of a large blob its pieces are named, which [openPieces] reads. The device then subscribes to those that it lacks, a few at a time,
 * and keeps what it has over restarts.
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
    /** By digest, how often each was asked for since something of it came. */
    private val wanted = sortedMapOf<String, Int>()

    /** By blob, what comes in pieces. */
    private val parts = sortedMapOf<String, BlobPart>()

    /** The pieces that are subscribed to. */
    private var awaited = emptySet<String>()

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
        parts -= gone
        new.forEach { wanted[it] = 0 }
        if (gone.isNotEmpty()) link.unsubscribe(gone.map(topics::blob))
        awaitPieces()
        if (new.isNotEmpty()) link.subscribe(new.map(topics::blob))
        return new.isNotEmpty()
    }

    /**
     * Takes a blob or a piece that came, or what names a blob's pieces; whether it was of use.
     *
     * @throws LimitExceeded the blob is larger than this device takes
     */
    fun onBlob(name: String, payload: ByteArray): Boolean {
        if (name !in wanted && name !in awaited) return false
        if (payload.size > mostBytes) throw LimitExceeded("blob $name: ${payload.size} bytes, at most $mostBytes are accepted")
        try {
            if (digest(payload) == name) return store(name, payload)
            return name !in awaited && onPieces(name, payload)
        } catch (error: IOException) { // it is asked for again later; there may be room then
            log.write(Log.Level.WARNING, "cannot store blob $name of ${payload.size} bytes: $error")
            return false
        }
    }

    /** Asks for everything that is missing; [again]: also for pieces that should be on their way, and for what names them. */
    fun ask(again: Boolean = false) {
        if (again && parts.isNotEmpty()) link.subscribe(parts.keys.map(topics::blob))
        val asked = if (again) wanted.keys + awaited else wanted.keys - parts.keys
        asked.forEach(fetch)
        for (name in asked) wanted.computeIfPresent(name) { _, asks -> asks + 1 }
    }

    private fun onPieces(name: String, payload: ByteArray): Boolean {
        val pieces = try {
            openPieces(payload).also { if (it.digest != name) throw Malformed("these are the pieces of ${it.digest}") }
        } catch (error: LimitExceeded) {
            throw error
        } catch (error: WireException) {
            log.write(Log.Level.WARNING, "ignored a blob whose hash is not its name, and that names no pieces: $name: ${error.message}")
            return false
        }
        link.unsubscribe(listOf(topics.blob(name)))
        wanted[name] = 0
        if (parts[name]?.pieces != pieces) {
            parts[name] = storage.part(pieces)
            goOn(name)
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
        changed.keys.forEach(::goOn)
        return true
    }

    /** Takes a blob of which nothing is missing any more, and waits for the next pieces. One that is not what its hash says comes anew. */
    private fun goOn(blob: String) {
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

    /** Subscribes to the next pieces, and to none that is here. */
    private fun awaitPieces() {
        val unknown = wanted.keys - parts.keys
        val next = parts.values.flatMap { part -> part.missing.take(WINDOW).map { part.pieces.pieces[it] } }.distinct().take(WINDOW).toSet()
        val (over, new) = Pair(awaited - next - unknown, next - awaited - unknown)
        awaited = next
        if (over.isNotEmpty()) link.unsubscribe(over.map(topics::blob))
        if (new.isNotEmpty()) link.subscribe(new.map(topics::blob))
    }

    private companion object {
        const val MOST_ASKS = 3
    }
}
