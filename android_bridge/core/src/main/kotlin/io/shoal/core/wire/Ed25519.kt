package io.shoal.core.wire

import java.math.BigInteger
import java.security.MessageDigest

/**
 * Verification of Ed25519 signatures (RFC 8032, sections 5.1.3 and 5.1.7), which Android has only
 * since API 33. All data are public, so its time may depend on them. One verification takes some
 * tens of milliseconds.
 */
internal object Ed25519 {
    private val P = BigInteger.ONE.shiftLeft(255) - BigInteger.valueOf(19)
    private val ORDER = BigInteger.ONE.shiftLeft(252) + BigInteger("27742317777372353535851937790883648493")
    private val D = (BigInteger.valueOf(-121665) * BigInteger.valueOf(121666).modInverse(P)).mod(P)
    private val ROOT_OF_MINUS_ONE = BigInteger.valueOf(2).modPow((P - BigInteger.ONE) / BigInteger.valueOf(4), P)
    private val BASE = requireNotNull(decode(ByteArray(32) { if (it == 0) 0x58 else 0x66 }))

    /** Point in extended homogeneous coordinates: x = X/Z, y = Y/Z, T = XY/Z. */
    internal class Point(val x: BigInteger, val y: BigInteger, val z: BigInteger, val t: BigInteger)

    /** Return the point that 32 bytes encode, or null if they encode none. */
    fun decode(encoded: ByteArray): Point? {
        if (encoded.size != 32) return null
        val number = littleEndian(encoded)
        val odd = number.testBit(255)
        val y = number.clearBit(255)
        if (y >= P) return null
        val square = (y * y).mod(P)
        val u = (square - BigInteger.ONE).mod(P)
        val v = (D * square + BigInteger.ONE).mod(P)
        var x = root(u, v) ?: return null
        if (x.signum() == 0 && odd) return null
        if (x.testBit(0) != odd) x = P - x
        return Point(x, y, BigInteger.ONE, (x * y).mod(P))
    }

    /**
     * Return true if the signature R, S is valid: the encoding of S·B − k·A is R, with k the hash
     * of R, A and the message.
     */
    fun verify(key: Point, encodedKey: ByteArray, signature: ByteArray, message: ByteArray): Boolean {
        if (signature.size != 64) return false
        val r = signature.copyOf(32)
        val s = littleEndian(signature.copyOfRange(32, 64))
        if (s >= ORDER) return false
        val hash = MessageDigest.getInstance("SHA-512").apply {
            update(r)
            update(encodedKey)
        }.digest(message)
        val k = littleEndian(hash).mod(ORDER)
        val minusKey = Point(P - key.x, key.y, key.z, P - key.t)
        return encode(add(multiply(BASE, s), multiply(minusKey, k))).contentEquals(r)
    }

    private fun encode(point: Point): ByteArray {
        val inverse = point.z.modInverse(P)
        val x = (point.x * inverse).mod(P)
        val y = (point.y * inverse).mod(P)
        val number = if (x.testBit(0)) y.setBit(255) else y
        val bigEndian = number.toByteArray()
        return ByteArray(32) { bigEndian.getOrElse(bigEndian.size - 1 - it) { 0 } }
    }

    private fun add(a: Point, b: Point): Point {
        val aa = ((a.y - a.x) * (b.y - b.x)).mod(P)
        val bb = ((a.y + a.x) * (b.y + b.x)).mod(P)
        val c = (a.t * b.t * D).shiftLeft(1).mod(P)
        val d = (a.z * b.z).shiftLeft(1).mod(P)
        val (e, f, g, h) = listOf(bb - aa, d - c, d + c, bb + aa)
        return Point((e * f).mod(P), (g * h).mod(P), (f * g).mod(P), (e * h).mod(P))
    }

    private fun multiply(point: Point, factor: BigInteger): Point {
        var sum = Point(BigInteger.ZERO, BigInteger.ONE, BigInteger.ONE, BigInteger.ZERO)
        for (bit in factor.bitLength() - 1 downTo 0) {
            sum = add(sum, sum)
            if (factor.testBit(bit)) sum = add(sum, point)
        }
        return sum
    }

    /** Return a square root of u/v, or null if there is none. */
    private fun root(u: BigInteger, v: BigInteger): BigInteger? {
        val v3 = (v * v * v).mod(P)
        val power = (P - BigInteger.valueOf(5)).shiftRight(3)
        val x = (u * v3 * (u * v3 * v3 * v).modPow(power, P)).mod(P)
        val vxx = (v * x * x).mod(P)
        return when (vxx) {
            u -> x
            (P - u).mod(P) -> (x * ROOT_OF_MINUS_ONE).mod(P)
            else -> null
        }
    }

    private fun littleEndian(bytes: ByteArray) = BigInteger(1, bytes.reversedArray())
}
