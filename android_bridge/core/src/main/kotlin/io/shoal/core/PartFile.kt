package io.shoal.core

import io.shoal.core.wire.Pieces
import io.shoal.core.wire.digest
import io.shoal.core.wire.hexOf
import io.shoal.core.wire.offset
import io.shoal.core.wire.size
import java.io.File
import java.io.RandomAccessFile
import java.nio.file.Files
import java.nio.file.StandardCopyOption
import java.security.MessageDigest

/**
 * Pieces of a blob in a [file], at their places (`host/part_file.py`). Existing pieces are hashed
 * when it opens.
 */
internal class PartFile(private val file: File, override val pieces: Pieces) : BlobPart {
    private val lacking = sortedSetOf<Int>()
    override val missing: Collection<Int> get() = lacking

    init {
        RandomAccessFile(file, "rw").use { opened ->
            if (opened.length() > pieces.numBytes) opened.setLength(pieces.numBytes)
            val length = opened.length()
            for ((index, name) in pieces.pieces.withIndex()) {
                val (offset, size) = Pair(pieces.offset(index), pieces.size(index))
                if (offset + size > length || digest(opened.part(offset, size)) != name) lacking += index
            }
        }
    }

    override fun put(index: Int, payload: ByteArray): Boolean {
        if (index !in lacking) return index in pieces.pieces.indices
        if (payload.size != pieces.size(index) || digest(payload) != pieces.pieces[index]) return false
        RandomAccessFile(file, "rw").use {
            it.seek(pieces.offset(index))
            it.write(payload)
        }
        lacking -= index
        return true
    }

    /**
     * Rename the file to [target] if its bytes have the expected hash, or delete it. Return true if
     * they have.
     */
    fun finish(target: File): Boolean {
        val whole = MessageDigest.getInstance("SHA-256")
        RandomAccessFile(file, "rw").use { opened ->
            for (index in pieces.pieces.indices) whole.update(opened.part(pieces.offset(index), pieces.size(index)))
            opened.fd.sync()
        }
        if (hexOf(whole.digest()) != pieces.digest) {
            Files.deleteIfExists(file.toPath())
            return false
        }
        Files.move(file.toPath(), target.toPath(), StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING)
        syncFolder(target.absoluteFile.parentFile)
        return true
    }
}

/** Return [size] bytes of a file from an offset on. */
internal fun RandomAccessFile.part(offset: Long, size: Int): ByteArray {
    seek(offset)
    return ByteArray(size).also(::readFully)
}
