package io.shoal.core

import java.io.File
import java.io.FileOutputStream
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
    FileChannel.open(file.absoluteFile.parentFile.toPath(), StandardOpenOption.READ).use { it.force(true) }
}
