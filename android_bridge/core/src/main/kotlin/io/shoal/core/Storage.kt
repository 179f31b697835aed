package io.shoal.core

import io.shoal.core.wire.Pieces

/**
 * The model that answers, whatever the run of the day is doing: the digests of its [bundle] and its tensors [model], the [run] that it came
 * from, and what the device has for itself beside it. [kept] is the digest of what it has kept of this model, where that is used; empty where
 * the model answers alone, and [alone] says why it did when it came into use; empty where nothing was kept then. [release] is the release's number, 0 if a finished run offered it;
 * [group] is what its group is called.
 */
@InternalShoalApi
public class Current(
    public val bundle: String,
    public val model: String,
    public val run: String,
    public val private: Tensors,
    public val release: Long = 0,
    public val group: String = "",
    public val kept: String = "",
    public val alone: String = "",
)

/** A blob that comes in pieces; those that are here outlive a restart. */
@InternalShoalApi
public interface BlobPart {
    /** What it is cut into. */
    public val pieces: Pieces

    /** The indexes of pieces that are not here, in order. */
    public val missing: Collection<Int>

    /** Keeps a piece; whether it is here now. If not, its bytes are not those of this piece. */
    public fun put(index: Int, payload: ByteArray): Boolean
}

/**
 * What must survive a restart of the device. Every write is complete or did not happen. What was damaged since it was written is taken
 * for missing.
 */
@InternalShoalApi
public interface Storage {
    /** The session as last saved; a new one at first. */
    public fun session(): Session

    /** Saves the session. */
    public fun save(session: Session)

    /** A downloaded blob, or null. Its bytes have this SHA-256. */
    public fun blob(digest: String): ByteArray?

    /** Whether a blob is here; [blob] may still find it damaged. */
    public fun hasBlob(digest: String): Boolean = blob(digest) != null

    /** Keeps a downloaded blob. */
    public fun putBlob(digest: String, payload: ByteArray)

    /** A blob that comes in pieces, with those that are kept already. */
    public fun part(pieces: Pieces): BlobPart

    /** Keeps a part of which nothing is missing as a blob. If its bytes do not have their hash it is forgotten, and this is false. */
    public fun finish(part: BlobPart): Boolean

    /** Forgets every blob but these, and every part of one. */
    public fun keepBlobs(digests: Set<String>)

    /** Keeps a finished update, and the private tensors as they are after that round. */
    public fun putUpdate(runId: String, round: Long, payload: ByteArray, private: Tensors)

    /** The update kept by [putUpdate], or null. */
    public fun update(): ByteArray?

    /** How many bytes it has; 0 if there is none. */
    public fun updateSize(): Long

    /** So many of its bytes, from an offset on. */
    public fun updatePart(offset: Long, size: Int): ByteArray

    /** Forgets the kept update. */
    public fun dropUpdate()

    /** What [putCheckpoint] kept; null if there is nothing, or if it was damaged: then it is deleted. */
    public fun checkpoint(): ByteArray?

    /** Keeps this in place of the one before. */
    public fun putCheckpoint(payload: ByteArray)

    /** Forgets it. */
    public fun dropCheckpoint()

    /**
     * The private tensors (`private/NAME`) as they were before this round of this run; empty at first. A round that is carried out again
     * after a crash starts from the same ones.
     */
    public fun private(runId: String, round: Long): Tensors

    /** The model in use, or the one before if what says so is damaged; null before there is one, and never again. */
    public fun current(): Current?

    /** The model that was in use before that one, or null. */
    public fun before(): Current?

    /** Puts another model in use; the one before is kept until the next. No prediction by it has failed yet. */
    public fun saveCurrent(current: Current)

    /** How many predictions have failed since the model in use was taken up. */
    public fun failures(): Long

    /** Keeps what [failures] gives back. */
    public fun saveFailures(count: Long)

    /** The bytes that came and went, by the hour of Unix time. */
    public fun traffic(): Map<Long, Long>

    /** Keeps what [traffic] gives back. */
    public fun saveTraffic(hours: Map<Long, Long>)
}
