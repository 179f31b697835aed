package io.shoal.core.wire

import io.shoal.core.BundleException
import java.math.BigInteger
import kotlin.test.Test
import kotlin.test.assertFailsWith
import kotlin.test.assertFalse
import kotlin.test.assertTrue

/** Vectors of RFC 8032, section 7.1, and signatures that a verifier must refuse. */
class Ed25519Test {
    private class Vector(val key: String, val message: String, val signature: String)

    private val vectors = listOf(
        Vector(
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ),
        Vector(
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        ),
        Vector(
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
            "af82",
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
        ),
        Vector(
            "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
            "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
            "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9bef1177331a704",
        ),
    )

    @Test
    fun `signatures of the RFC fit`() {
        for (v in vectors) assertTrue(PublicKey.of(bytes(v.key)).verify(bytes(v.signature), bytes(v.message)), v.key)
    }

    @Test
    fun `a changed signature, message or key does not fit`() {
        for (v in vectors) {
            val key = PublicKey.of(bytes(v.key))
            for (bit in 0 until 512 step 37) assertFalse(key.verify(flipped(bytes(v.signature), bit), bytes(v.message)))
            assertFalse(key.verify(bytes(v.signature), bytes(v.message) + 1))
            assertFalse(key.verify(bytes(v.signature).copyOf(63), bytes(v.message)))
            assertFalse(key.verify(ByteArray(0), bytes(v.message)))
        }
        assertFalse(PublicKey.of(bytes(vectors[0].key)).verify(bytes(vectors[1].signature), bytes(vectors[1].message)))
    }

    @Test
    fun `S beyond the order of the group does not fit`() {
        val v = vectors[1]
        val order = BigInteger.ONE.shiftLeft(252) + BigInteger("27742317777372353535851937790883648493")
        val s = BigInteger(1, bytes(v.signature).copyOfRange(32, 64).reversedArray()) + order
        val malleable = bytes(v.signature).copyOf(32) + s.toByteArray().reversedArray().copyOf(32)
        assertFalse(PublicKey.of(bytes(v.key)).verify(malleable, bytes(v.message)))
    }

    @Test
    fun `bytes that are no point are no key`() {
        assertFailsWith<BundleException> { PublicKey.of(ByteArray(31)) }
        assertFailsWith<BundleException> { PublicKey.of(ByteArray(32) { -1 }) }
        assertFailsWith<BundleException> { PublicKey.of(ByteArray(32).also { it[0] = 2 }) }
    }

    private fun flipped(bytes: ByteArray, bit: Int) = bytes.copyOf().also { it[bit / 8] = (it[bit / 8].toInt() xor (1 shl bit % 8)).toByte() }

    private fun bytes(hex: String) = hex.chunked(2).map { it.toInt(16).toByte() }.toByteArray()
}
