package io.shoal.android

import io.shoal.core.writeAtomically
import java.io.File
import java.io.IOException
import java.util.concurrent.CompletableFuture
import java.util.concurrent.CopyOnWriteArrayList
import java.util.concurrent.Executor

/**
 * Consent of the phone's owner to take part, on the terms of a version. It is stored on disk.
 * Without it nothing is trained, recorded or sent. Functions may be called on any thread, also the
 * main thread; in the first milliseconds of a process, properties wait until a thread of the library
 * has read small files.
 */
public class Consent internal constructor(
    private val home: Home,
    private val disk: Executor,
    reader: Executor,
    private val onGranted: () -> Unit,
    private val onWithdrawn: () -> Unit,
    private val erase: () -> Boolean,
    private val isReadable: () -> Boolean,
) {
    private val file get() = File(home.folder, "consent.txt")
    private val erasing get() = File(home.folder, "erase.txt")

    /** File that exists from the consent until the aggregator has confirmed its withdrawal. */
    private val member get() = File(home.folder, "member.txt")
    private val lock = Any()
    private val work = CopyOnWriteArrayList<() -> Unit>()

    private val storedVersion = Stored(reader, ::recordedVersion)
    private val isMember = Stored(reader) { member.exists() }

    /** Version of the accepted terms, or null without consent. */
    public val version: String? get() = if (isReadable()) storedVersion.value else null

    /** True if there is consent. */
    public val isGranted: Boolean get() = version != null

    /**
     * True if there is no consent and the aggregator knows it: it has confirmed the withdrawal, or
     * there never was consent.
     */
    public val isWithdrawalConfirmed: Boolean get() = !isGranted && !isMember.value

    init {
        reader.execute { if (erasing.exists()) eraseSoon() } // the last process ended before everything was erased
    }

    /**
     * Store the owner's consent to these terms. Returns at once; a thread of the library writes the
     * record, and completes the result: true if the consent is on disk and outlives the process,
     * false if it was withdrawn before, or if the disk is full. [version] is then that of the record
     * again, or null: ask the owner again when there is room. Do not wait for the result on the main
     * thread. A second consent replaces the version.
     *
     * @param version 1 to 64 characters of `A-Z a-z 0-9 . _ -`
     * @throws IllegalArgumentException [version] has another form
     */
    public fun grant(version: String): CompletableFuture<Boolean> {
        require(VERSION.matches(version)) { "version must be 1 to 64 characters of A-Z a-z 0-9 . _ -, got '$version'" }
        synchronized(lock) { storedVersion.value = version }
        return disk.outcome {
            synchronized(lock) {
                if (storedVersion.value == version) store(version)
                storedVersion.value == version
            }.also { if (it) onGranted() }
        }
    }

    /**
     * Withdraw the owner's consent: training ends before its next batch, and recording at once.
     * When this returns, the record is gone from disk, by renaming or deleting one small file. With
     * [eraseLocal], recordings are deleted, and so is everything that the phone has learned from
     * them. The fleet's model stays, so that predictions go on. A thread of the library deletes
     * them, or the next process if this one ends before. A job tells the aggregator as soon as there
     * is a network ([isWithdrawalConfirmed]).
     */
    @JvmOverloads
    public fun withdraw(eraseLocal: Boolean = false) {
        synchronized(lock) {
            storedVersion.value = null
            if (eraseLocal) storeErasing() else file.delete()
        }
        work.forEach { it() }
        disk.execute(onWithdrawn)
        if (eraseLocal) eraseSoon()
    }

    /**
     * Store that data are to be erased, for the next process. A full disk has room to rename the
     * record; otherwise this process alone erases the data.
     */
    private fun storeErasing() {
        try {
            if (!file.renameTo(erasing)) writeAtomically(erasing, ByteArray(0))
        } catch (_: IOException) { // the disk is full, or the phone leaves its fleet meanwhile
        } finally {
            file.delete()
        }
    }

    private fun recordedVersion(): String? = file.takeIf { it.exists() }?.readText()?.takeIf(VERSION::matches)

    private fun store(version: String): Unit = try {
        home.folder.mkdirs()
        isMember.value = true
        writeAtomically(member, ByteArray(0))
        writeAtomically(file, version.toByteArray())
    } catch (_: IOException) { // the disk is full
        storedVersion.value = recordedVersion()
        isMember.value = member.exists()
    }

    /** Register that the aggregator has confirmed the withdrawal. */
    internal fun confirm(): Unit = synchronized(lock) {
        if (version == null) {
            member.delete()
            isMember.value = false
        }
    }

    /** Call [stop] when consent is withdrawn, until [forget] is called with the same function. */
    internal fun whenWithdrawn(stop: () -> Unit) {
        work.addIfAbsent(stop)
    }

    internal fun forget(stop: () -> Unit) {
        work -= stop
    }

    private fun eraseSoon() = disk.execute {
        if (erase()) erasing.delete() // otherwise the next process tries again
    }

    private companion object {
        val VERSION = Regex("[A-Za-z0-9._-]{1,64}")
    }
}
