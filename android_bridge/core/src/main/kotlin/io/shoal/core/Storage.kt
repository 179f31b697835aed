package io.shoal.core

/** What must survive a restart of the device. Every write is complete or did not happen. */
public interface Storage {
    /** The session as last saved; a new one at first. */
    public fun session(): Session

    /** Saves the session. */
    public fun save(session: Session)

    /** A downloaded blob, or null. */
    public fun blob(digest: String): ByteArray?

    /** Whether a blob is here. */
    public fun hasBlob(digest: String): Boolean = blob(digest) != null

    /** Keeps a downloaded blob. */
    public fun putBlob(digest: String, payload: ByteArray)

    /** Forgets every blob but these. */
    public fun keepBlobs(digests: Set<String>)

    /** Keeps a finished update, and the private tensors as they are after that round. */
    public fun putUpdate(runId: String, round: Long, payload: ByteArray, private: Tensors)

    /** The update kept by [putUpdate], or null. */
    public fun update(): ByteArray?

    /** Forgets the kept update. */
    public fun dropUpdate()

    /**
     * The private tensors (`private/NAME`) as they were before this round of this run; empty at first. A round that is carried out again
     * after a crash starts from the same ones.
     */
    public fun private(runId: String, round: Long): Tensors
}
