package io.shoal.core

import io.shoal.core.wire.Pieces

/**
 * Model in use: the digests of its [bundle] and of its tensors [model], the [run] that it came
 * from, and the device's own tensors beside it.
 *
 * @property personalModel digest of its personal model, empty if the model answers alone
 * @property alone reason why it answered alone when it came into use; empty if the device had no
 *   personal model then
 * @property release number of the release; 0 if a finished run offered it
 * @property group name of its group
 * @property sinceS Unix time when it came into use
 * @property back reason why the device went back to it from the model before; empty if it came after
 *   that
 */
@InternalShoalApi
public class Current(
    public val bundle: String,
    public val model: String,
    public val run: String,
    public val private: Tensors,
    public val release: Long = 0,
    public val group: String = "",
    public val personalModel: String = "",
    public val alone: String = "",
    public val sinceS: Double = 0.0,
    public val back: String = "",
)

/** Partial blob. Its pieces outlive a restart. */
@InternalShoalApi
public interface BlobPart {
    /** List of its pieces. */
    public val pieces: Pieces

    /** Indexes of the missing pieces, in order. */
    public val missing: Collection<Int>

    /**
     * Store a piece, and return true if it is here now. Otherwise its bytes are not those of this
     * piece.
     */
    public fun put(index: Int, payload: ByteArray): Boolean
}

/**
 * State of a device that must survive a restart. Every write is complete or did not happen. Damaged
 * data count as missing.
 */
@InternalShoalApi
public interface Storage {
    /** Return the session that was saved last, or a new one. */
    public fun session(): Session

    /** Save the session. */
    public fun save(session: Session)

    /** Return the last start of the client that was saved, [Start] if none was, or [Start.DAMAGED]. */
    public fun start(): Start

    /** Save the present [start] of the client. */
    public fun saveStart(start: Start)

    /** Return a stored blob, or null. Its bytes have this SHA-256. */
    public fun blob(digest: String): ByteArray?

    /** Return true if a blob is here. [blob] may still find it damaged. */
    public fun hasBlob(digest: String): Boolean = blob(digest) != null

    /** Store a blob. */
    public fun putBlob(digest: String, payload: ByteArray)

    /** Return the partial blob of these pieces: a new one, or the one that exists. */
    public fun part(pieces: Pieces): BlobPart

    /**
     * Store a complete partial blob as a blob, and return true. If its bytes have another hash,
     * delete it and return false.
     */
    public fun finish(part: BlobPart): Boolean

    /** Delete all blobs and partial blobs except those of these digests. */
    public fun keepBlobs(digests: Set<String>)

    /** Store a finished update and the private tensors after its round. */
    public fun putUpdate(runId: String, round: Long, payload: ByteArray, private: Tensors)

    /** Return the stored update, or null. */
    public fun update(): ByteArray?

    /** Return the size of the stored update, 0 if there is none. */
    public fun updateSize(): Long

    /** Return [size] bytes of the stored update from an offset on. */
    public fun updatePart(offset: Long, size: Int): ByteArray

    /** Delete the stored update. */
    public fun dropUpdate()

    /** Return the stored checkpoint, or null if there is none. A damaged checkpoint is deleted. */
    public fun checkpoint(): ByteArray?

    /** Store a checkpoint in place of the previous one. */
    public fun putCheckpoint(payload: ByteArray)

    /** Delete the checkpoint. */
    public fun dropCheckpoint()

    /**
     * Return a run's private tensors (`private/NAME`) as they were before this round; empty at
     * first. A round that is repeated after a crash starts from the same tensors.
     */
    public fun private(runId: String, round: Long): Tensors

    /**
     * Return the model in use, or the one before it if its file is damaged. Null before the first
     * one, and never again.
     */
    public fun current(): Current?

    /** Return the model that was in use before, or null. */
    public fun before(): Current?

    /**
     * Take another model into use. The previous one stays stored until the next, and the count of
     * failures starts at 0.
     */
    public fun saveCurrent(current: Current)

    /** Return the number of failed predictions since the model in use was taken up. */
    public fun failures(): Long

    /** Store the number of [failures]. */
    public fun saveFailures(count: Long)

    /**
     * Return the answers to questions of secret sums as they were stored, or null before the first one.
     *
     * @throws MalformedException the file is damaged; it is not deleted, since questions could be answered
     *   again then
     */
    public fun answers(): ByteArray?

    /** Store the answers to questions of secret sums. */
    public fun saveAnswers(payload: ByteArray)

    /**
     * Return the facts that bind the device in surveys as they were stored, or null before the first
     * one.
     *
     * @throws MalformedException the file is damaged; it is not deleted, since the device could tell
     *   more of itself then
     */
    public fun surveys(): ByteArray?

    /** Store the facts that bind the device in surveys. */
    public fun saveSurveys(payload: ByteArray)

    /** Return the sums of the streams of a bundle's windows, new ones if there are none. */
    public fun stream(bundle: String): StreamSums

    /** Store the sums of a bundle's streams. */
    public fun saveStream(sums: StreamSums)

    /** Return the stretches that may be asked about, and the time of the last question. */
    public fun questions(): Questions

    /** Store the [questions]. */
    public fun saveQuestions(questions: Questions)

    /** Return the bytes sent and received, by the hour of Unix time. */
    public fun traffic(): Map<Long, Long>

    /** Store the [traffic]. */
    public fun saveTraffic(hours: Map<Long, Long>)
}
