package io.shoal.core

import java.io.File
import java.io.FileOutputStream
import java.io.IOException
import java.nio.channels.FileChannel
import java.nio.file.Files
import java.nio.file.StandardCopyOption
import java.nio.file.StandardOpenOption

/**
 * Write a file so that after a crash it has the old content or the new content, never a part. Its
 * folder must exist.
 */
@InternalShoalApi
public fun writeAtomically(file: File, payload: ByteArray) {
    val temporary = File(file.path + ".new")
    FileOutputStream(temporary).use {
        it.write(payload)
        it.fd.sync()
    }
    Files.move(temporary.toPath(), file.toPath(), StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING)
    syncFolder(file.absoluteFile.parentFile)
}

/**
 * Write a folder's entries to disk. Not every file system permits that: then the file's content is on
 * disk, and its name follows when the file system writes it.
 */
internal fun syncFolder(folder: File, force: (File) -> Unit = ::forceFolder) {
    try {
        force(folder)
    } catch (_: IOException) {
    }
}

private fun forceFolder(folder: File): Unit = FileChannel.open(folder.toPath(), StandardOpenOption.READ).use { it.force(true) }
