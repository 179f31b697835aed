package io.shoal.android

import java.util.concurrent.CompletableFuture
import java.util.concurrent.Executor

/**
 * Recordings of [SensorRecorder] on this phone, in files of ten minutes at most. Functions return at
 * once, on any thread, with consent or without; a thread of the library reads and deletes files. Do
 * not wait for its results on the main thread.
 */
public class StoredRecordings internal constructor(private val home: Home, private val disk: Executor) {
    /**
     * Return all recordings, in the order of their start, but for the file that is being written.
     * The result fails with an [java.io.IOException] if a file cannot be read.
     */
    public fun list(): CompletableFuture<List<RecordingInfo>> = CompletableFuture.supplyAsync({ folder().list() }, disk)

    /**
     * Delete recordings that began from [fromMs] to before [untilMs] (Unix time in ms), also the
     * file that is being written; none if the time does not end after it begins. The result is true
     * if they are gone from disk, or there were none. Labels of this time stay ([Labels.remove])
     * while there are earlier recordings, and what was learned from these stays, too
     * ([Consent.withdraw]).
     */
    public fun delete(fromMs: Long, untilMs: Long): CompletableFuture<Boolean> = disk.outcome { folder().delete(fromMs, untilMs) }

    private fun folder() = RecordingFolder(home.recordings)

    /** A recording in one file. */
    public class RecordingInfo internal constructor(
        /** Unix time of the first sample (ms). */
        public val startMs: Long,
        /** Label with which it was made; empty without one. */
        public val label: String,
        /** Number of samples of each sensor; [WindowSpec.rateHz] are a second. */
        public val numSamples: Int,
        /** Size of the file (bytes). */
        public val numBytes: Long,
    ) {
        override fun equals(other: Any?): Boolean = other is RecordingInfo && toString() == other.toString()

        override fun hashCode(): Int = toString().hashCode()

        override fun toString(): String = "$numSamples samples of '$label' from $startMs in $numBytes bytes"
    }
}
