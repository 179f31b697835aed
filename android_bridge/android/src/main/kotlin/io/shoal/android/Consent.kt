package io.shoal.android

import java.io.File
import java.io.IOException
import java.util.concurrent.CopyOnWriteArrayList
import java.util.concurrent.Executor

/**
 * Whether the phone's owner agrees to take part, and to which terms. It is kept on disk. Without it nothing is trained, recorded or sent.
 */
public class Consent internal constructor(
    folder: File,
    private val disk: Executor,
    private val onGranted: () -> Unit,
    private val onWithdrawn: () -> Unit,
    private val erase: () -> Boolean,
) {
    private val file = File(folder, "consent.txt")
    private val erasing = File(folder, "erase.txt")

    /** There from the consent on until the aggregator has confirmed that there is none any more. */
    private val member = File(folder, "member.txt")
    private val lock = Any()
    private val work = CopyOnWriteArrayList<() -> Unit>()

    /** The version of the terms that were agreed to, or null without consent. */
    @Volatile
    public var version: String? = file.takeIf { it.exists() }?.readText()?.takeIf(VERSION::matches)
        private set

    /** Whether there is consent. */
    public val isGranted: Boolean get() = version != null

    /** Whether there is no consent and the aggregator knows it: it has confirmed the withdrawal, or there never was consent. */
    public val isWithdrawalConfirmed: Boolean get() = !isGranted && !member.exists()

    init {
        if (erasing.exists()) eraseSoon() // the process ended before all was erased
    }

    /**
     * The owner agrees to these terms. Returns at once; the record is written by a thread of the library's.
     *
     * @param version 1 to 64 of `A-Z a-z 0-9 . _ -`
     * @throws IllegalArgumentException another [version]
     */
    public fun grant(version: String) {
        require(VERSION.matches(version)) { "version '$version', expected 1 to 64 of A-Z a-z 0-9 . _ -" }
        synchronized(lock) { this.version = version }
        disk.execute {
            val written = synchronized(lock) { (this.version == version).also { if (it) note(version) } }
            if (written) onGranted()
        }
    }

    /**
     * The owner agrees no longer: training ends before its next batch, and recording at once. When this returns the record is gone from disk.
     * With [eraseLocal] recordings are deleted, and what the phone has learned from them; the fleet's model stays, so that predictions go on.
     * That is done by a thread of the library's, and after a restart if the process ends before. A job tells the aggregator as soon as there
     * is a network ([isWithdrawalConfirmed]).
     */
    @JvmOverloads
    public fun withdraw(eraseLocal: Boolean = false) {
        synchronized(lock) {
            version = null
            if (eraseLocal) noteErasing() else file.delete()
        }
        work.forEach { it() }
        disk.execute(onWithdrawn)
        if (eraseLocal) eraseSoon()
    }

    /** What outlives a restart. A full disk has room to rename the record; where there is none it is erased below, in this process. */
    private fun noteErasing() {
        try {
            if (!file.renameTo(erasing)) replace(erasing, ByteArray(0))
        } catch (_: IOException) { // a full disk, or the phone leaves meanwhile
        } finally {
            file.delete()
        }
    }

    private fun note(version: String) {
        replace(member, ByteArray(0))
        replace(file, version.toByteArray())
    }

    /** The aggregator knows that there is no consent. */
    internal fun confirm(): Unit = synchronized(lock) { if (version == null) member.delete() }

    /** Has [stop] called when consent is withdrawn, until [forget] is told the same. */
    internal fun whenWithdrawn(stop: () -> Unit) {
        work.addIfAbsent(stop)
    }

    internal fun forget(stop: () -> Unit) {
        work -= stop
    }

    private fun eraseSoon() = disk.execute {
        if (erase()) erasing.delete() // else the next process tries again
    }

    private companion object {
        val VERSION = Regex("[A-Za-z0-9._-]{1,64}")
    }
}
