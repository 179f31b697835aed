package io.shoal.core.wire

import io.shoal.core.ShoalException
import io.shoal.core.fromPython
import io.shoal.core.repository
import java.io.File
import java.util.Random
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertTrue

/**
 * 100,000 messages changed at random: each is read or refused with the declared exception, and
 * nothing else happens.
 */
class FuzzTest {
    private val random = Random(7)
    private val golden = File(repository, "wire/vectors/golden").listFiles()!!.sorted()

    @Test
    fun `changed messages are read or refused`() {
        val seeds = golden.filter { it.extension == "json" }.map { it.readBytes() }
        val refused = (0 until 70_000).count { refuses(changed(seeds[it % seeds.size])) { payload -> decodeAny(payload) } }
        assertTrue(refused in 35_000..69_999, "$refused refused: the changes are too harmless, or nothing is accepted")
    }

    @Test
    fun `changed tensor files are read or refused`() {
        val seeds = golden.filter { it.extension == "safetensors" }.map { it.readBytes() }
        val refused = (0 until 30_000).count {
            val payload = changed(seeds[it % seeds.size])
            if (it % 2 == 0) refuses(payload) { p -> decodeTensors(p) } else refuses(payload) { p -> decodeUpdate(p) }
        }
        assertTrue(refused in 10_000..29_999, "$refused refused: the changes are too harmless, or nothing is accepted")
    }

    @Test
    fun `reads and refuses what Python reads and refuses`() {
        val lines = fromPython("verdicts.txt").readLines()
        assertTrue(lines.size >= 7000)
        val differ = lines.filter { line ->
            val (verdict, kind, hex) = line.split(' ', limit = 3)
            val payload = ByteArray(hex.length / 2) { hex.substring(2 * it, 2 * it + 2).toInt(16).toByte() }
            val refused = if (kind == "message") refuses(payload) { decodeAny(it) } else refuses(payload) { decodeTensors(it) }
            refused != (verdict == "refused")
        }
        assertEquals(emptyList(), differ)
    }

    @Test
    fun `changed bundles are refused`() {
        val bundle = fromPython("executor/bundle.zip").readBytes()
        val accepted = (0 until 2_000).count { !refuses(changed(bundle)) { Bundle.unpack(it, keys) } }
        assertTrue(accepted < 200, "$accepted accepted: few bytes of a bundle mean nothing")
    }

    @Test
    fun `changed keys are read or refused`() {
        val pem = fromPython("executor/trust.pem").readBytes()
        repeat(2_000) { refuses(changed(pem)) { PublicKey.parse(it.decodeToString()) } }
    }

    private val keys by lazy { PublicKey.parse(fromPython("executor/trust.pem").readText()) }

    private inline fun refuses(payload: ByteArray, read: (ByteArray) -> Unit): Boolean = try {
        read(payload)
        false
    } catch (_: ShoalException) {
        true
    }

    /**
     * Make one to four changes: a byte, a bit, a cut, a part doubled, removed or overwritten, a
     * token inserted.
     */
    private fun changed(original: ByteArray): ByteArray {
        var bytes = original.copyOf()
        repeat(1 + random.nextInt(4)) {
            if (bytes.isEmpty()) return bytes
            val at = random.nextInt(bytes.size)
            val end = at + random.nextInt(minOf(16, bytes.size - at) + 1)
            when (random.nextInt(8)) {
                0, 1 -> bytes[at] = random.nextInt(256).toByte()
                2 -> bytes[at] = (bytes[at].toInt() xor (1 shl random.nextInt(8))).toByte()
                3 -> bytes = bytes.copyOf(at)
                4 -> bytes = bytes.copyOf(end) + bytes.copyOfRange(at, bytes.size)
                5 -> bytes = bytes.copyOf(at) + bytes.copyOfRange(end, bytes.size)
                6 -> ByteArray(end - at).also(random::nextBytes).copyInto(bytes, at)
                else -> bytes = bytes.copyOf(at) + TOKENS[random.nextInt(TOKENS.size)].toByteArray() + bytes.copyOfRange(at, bytes.size)
            }
        }
        return bytes
    }

    private companion object {
        val TOKENS = listOf(
            "{", "}", "[", "]", "\"", ":", ",", "null", "true", "-1", "1e999", "9".repeat(400), "\\u0000", "\\ud800", "0.5", "\"type\":\"plan\",",
            "[[[[[[[[", "-0", "1E-400", "\u0000", "é", "18446744073709551616", "2147483649", "\"shape\":[4294967296,4294967296],",
        )
    }
}
