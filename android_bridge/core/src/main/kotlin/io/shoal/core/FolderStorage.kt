package io.shoal.core

import io.shoal.core.wire.Limits
import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.encodeTensors
import java.io.File
import java.io.FileOutputStream
import java.io.IOException
import java.nio.channels.FileChannel
import java.nio.file.Files
import java.nio.file.StandardCopyOption
import java.nio.file.StandardOpenOption
import java.util.Locale

/**
 * A [Storage] in a folder of its own: `session.json update.safetensors private.RUN.ROUND blobs/SHA256`.
 *
 * @throws ConfigException the folder cannot be made or written
 */
public class FolderStorage(private val folder: File) : Storage {
    private val blobs = File(folder, "blobs")
    private val sessionFile = File(folder, "session.json")
    private val updateFile = File(folder, "update.safetensors")

    init {
        if (!blobs.isDirectory && !blobs.mkdirs() || !blobs.canWrite()) throw ConfigException("state folder $folder: it cannot be written")
    }

    override fun session(): Session {
        val text = read(sessionFile) ?: return Session()
        return try {
            decodeSession(text)
        } catch (error: Malformed) {
            val advice = "remove the folder to start afresh"
            throw ConfigException("$sessionFile: not a session of this version (${error.message}); $advice", error)
        }
    }

    override fun save(session: Session): Unit = writeAtomically(sessionFile, encodeSession(session))

    override fun blob(digest: String): ByteArray? = read(File(blobs, digest))

    override fun hasBlob(digest: String): Boolean = File(blobs, digest).exists()

    override fun putBlob(digest: String, payload: ByteArray): Unit = writeAtomically(File(blobs, digest), payload)

    override fun keepBlobs(digests: Set<String>): Unit = filesIn(blobs).filter { it.name !in digests }.forEach(::delete)

    override fun putUpdate(runId: String, round: Long, payload: ByteArray, private: Tensors) {
        val name = "private.%s.%08d".format(Locale.ROOT, runId, round)
        if (private.isNotEmpty()) writeAtomically(File(folder, name), encodeTensors(private))
        writeAtomically(updateFile, payload)
        privateFiles(runId, round).dropLast(2).forEach(::delete)
    }

    override fun update(): ByteArray? = read(updateFile)

    override fun dropUpdate(): Unit = delete(updateFile)

    override fun private(runId: String, round: Long): Tensors {
        val before = privateFiles(runId, round - 1).lastOrNull() ?: return emptyMap()
        return decodeTensors(before.readBytes(), Limits.OWN_FILES).tensors
    }

    /** The files of a run's private tensors up to a round, the earliest first. */
    private fun privateFiles(runId: String, upTo: Long): List<File> {
        val prefix = "private.$runId."
        val rounds = filesIn(folder).filter { it.name.startsWith(prefix) }.mapNotNull { file ->
            file.name.removePrefix(prefix).takeIf { it.length >= ROUND_DIGITS }?.toLongOrNull()?.let { round -> round to file }
        }
        return rounds.filter { it.first <= upTo }.sortedBy { it.first }.map { it.second }
    }

    private fun filesIn(folder: File): List<File> = folder.listFiles()?.toList() ?: throw IOException("$folder cannot be read")

    private fun read(file: File): ByteArray? = if (file.exists()) file.readBytes() else null

    private fun delete(file: File) {
        Files.deleteIfExists(file.toPath())
    }

    private companion object {
        /** A round's number has at least so many digits in a file's name. */
        const val ROUND_DIGITS = 8
    }
}

/** Writes a file so that after a crash it is the old one or the new one, never a part. */
internal fun writeAtomically(file: File, payload: ByteArray) {
    val temporary = File(file.path + ".new")
    FileOutputStream(temporary).use {
        it.write(payload)
        it.fd.sync()
    }
    Files.move(temporary.toPath(), file.toPath(), StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING)
    FileChannel.open(file.absoluteFile.parentFile.toPath(), StandardOpenOption.READ).use { it.force(true) }
}
