package io.shoal.host

import io.shoal.core.DataException
import io.shoal.core.Tensor
import io.shoal.core.Windows
import java.io.DataInputStream
import java.io.File
import java.io.IOException
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.zip.ZipFile

/**
 * Return a device's windows from `train.npz` and `test.npz`, each with `X` (n, channels, time),
 * float32 or whole numbers, and `y` (n) int64, in the format of `shoal-edge`.
 *
 * @throws DataException a file or an array is missing, or has another format
 */
public fun readFolder(folder: File): Windows {
    val (trainX, trainY) = readArrays(File(folder, "train.npz"))
    val (testX, testY) = readArrays(File(folder, "test.npz"))
    return Windows(trainX, trainY, testX, testY)
}

private fun readArrays(file: File): Pair<Tensor, Tensor> = try {
    ZipFile(file).use { archive ->
        fun array(name: String): Tensor {
            val entry = archive.getEntry("$name.npy") ?: throw DataException("$file: no array $name")
            return DataInputStream(archive.getInputStream(entry)).use { readArray(it, "$file, array $name") }
        }
        Pair(array("X"), array("y"))
    }
} catch (error: IOException) {
    throw DataException("$file: not readable: ${error.message}")
}

private val DTYPE = Regex("'descr': '([^']*)'")
private val ORDER = Regex("'fortran_order': False")
private val SHAPE = Regex("'shape': \\(([0-9, ]*)\\)")

/**
 * Return an array in numpy's format, version 1 to 3: magic, version, length of the header, header,
 * numbers.
 */
private fun readArray(input: DataInputStream, what: String): Tensor {
    val magic = ByteArray(8).also(input::readFully)
    if (!magic.copyOf(6).contentEquals(byteArrayOf(0x93.toByte(), 'N'.code.toByte(), 'U'.code.toByte(), 'M'.code.toByte(), 'P'.code.toByte(), 'Y'.code.toByte()))) {
        throw DataException("$what: not a numpy array")
    }
    val sizeBytes = if (magic[6] == 1.toByte()) 2 else 4
    val size = (0 until sizeBytes).sumOf { input.readUnsignedByte() shl (8 * it) }
    val header = ByteArray(size).also(input::readFully).decodeToString()
    val shape = SHAPE.find(header)?.let { match -> match.groupValues[1].split(',').filter { it.isNotBlank() }.map { it.trim().toInt() } }
    if (shape == null || !ORDER.containsMatchIn(header)) throw DataException("$what: its header must have C order and a shape, got $header")
    val numbers = ByteBuffer.wrap(input.readBytes()).order(ByteOrder.LITTLE_ENDIAN)
    return when (val dtype = DTYPE.find(header)?.groupValues?.get(1)) {
        "<f4" -> Tensor.of(FloatArray(numbers.remaining() / 4).also { numbers.asFloatBuffer().get(it) }, shape)
        "<i2" -> Tensor.of(LongArray(numbers.remaining() / 2) { numbers.getShort(2 * it).toLong() }, shape)
        "<i4" -> Tensor.of(LongArray(numbers.remaining() / 4) { numbers.getInt(4 * it).toLong() }, shape)
        "<i8" -> Tensor.of(LongArray(numbers.remaining() / 8).also { numbers.asLongBuffer().get(it) }, shape)
        else -> throw DataException("$what: its numbers must be <f4, <i2, <i4 or <i8, got $dtype")
    }
}
