package io.shoal.core.wire

import io.shoal.core.BundleException
import java.nio.BufferUnderflowException
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.zip.CRC32

/**
 * Return the files of a ZIP archive whose entries are all stored without compression, by name, in
 * the order of the directory. Java's own reader needs a file, or trusts the local headers. This one
 * reads the directory, and takes no more memory than the archive has.
 *
 * @throws BundleException it is no such archive, a name comes twice, entries overlap, or a checksum
 *   does not match
 */
internal fun readStoredZip(payload: ByteArray): MutableMap<String, ByteArray> = try {
    StoredZip(payload).read()
} catch (_: BufferUnderflowException) {
    throw BundleException("bundle of ${payload.size} bytes: not readable: it ends within a ZIP header")
} catch (_: IndexOutOfBoundsException) {
    throw BundleException("bundle of ${payload.size} bytes: not readable: a ZIP header points beyond its end")
}

private class StoredZip(private val payload: ByteArray) {
    private val bytes = ByteBuffer.wrap(payload).order(ByteOrder.LITTLE_ENDIAN)
    private var total = 0L

    fun read(): MutableMap<String, ByteArray> {
        val end = endOfDirectory()
        val count = bytes.getShort(end + 10).toInt() and 0xffff
        val files = LinkedHashMap<String, ByteArray>()
        var at = index(bytes.getInt(end + 16))
        repeat(count) {
            if (bytes.getInt(at) != DIRECTORY_ENTRY) fail("its directory is damaged")
            val nameLength = bytes.getShort(at + 28).toInt() and 0xffff
            val name = String(payload, at + 46, nameLength, Charsets.UTF_8)
            if (files.put(name, entry(at, name)) != null) fail("it holds '$name' twice")
            at += 46 + nameLength + (bytes.getShort(at + 30).toInt() and 0xffff) + (bytes.getShort(at + 32).toInt() and 0xffff)
        }
        return files
    }

    private fun endOfDirectory(): Int {
        val last = payload.size - END_BYTES
        return (last downTo maxOf(0, last - 0xffff)).firstOrNull { bytes.getInt(it) == DIRECTORY_END } ?: fail("it is no ZIP archive")
    }

    private fun entry(at: Int, name: String): ByteArray {
        val encrypted = bytes.getShort(at + 8).toInt() and 1 != 0
        val size = index(bytes.getInt(at + 24))
        if (encrypted || bytes.getShort(at + 10).toInt() != 0 || bytes.getInt(at + 20) != size) {
            throw BundleException("bundle: its files must be stored without compression")
        }
        total += size
        if (total > payload.size) fail("its entries overlap")
        val local = index(bytes.getInt(at + 42))
        if (bytes.getInt(local) != LOCAL_ENTRY) fail("the entry of '${name.take(80)}' is damaged")
        val start = local + 30 + (bytes.getShort(local + 26).toInt() and 0xffff) + (bytes.getShort(local + 28).toInt() and 0xffff)
        if (start.toLong() + size > payload.size) fail("the entry of '${name.take(80)}' is damaged")
        val data = payload.copyOfRange(start, start + size)
        if (CRC32().apply { update(data) }.value.toInt() != bytes.getInt(at + 16)) fail("the checksum of '${name.take(80)}' does not fit")
        return data
    }

    private fun index(value: Int): Int = if (value in 0..payload.size) value else fail("a ZIP header points beyond its end")

    private fun fail(what: String): Nothing = throw BundleException("bundle of ${payload.size} bytes: not readable: $what")

    private companion object {
        const val LOCAL_ENTRY = 0x04034b50
        const val DIRECTORY_ENTRY = 0x02014b50
        const val DIRECTORY_END = 0x06054b50
        const val END_BYTES = 22
    }
}
