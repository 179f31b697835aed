package io.shoal.core.wire

import io.shoal.core.BundleException
import io.shoal.core.LimitExceededException
import io.shoal.core.MalformedException
import io.shoal.core.UntrustedException
import java.util.Base64

/**
 * Verifier of an aggregator's messages for one fleet (`wire/SPEC.md`, 'Signatures'). A signed
 * message has four lines: the message, its signature by a service key, the voucher for that key,
 * and the signature of the voucher by a root key in [trusted]. Without trusted keys every message
 * is believed, signed or not. Used by one thread.
 */
internal class Verifier(private val fleet: String, private val trusted: List<PublicKey>) {
    private var verified: VerifiedVoucher? = null

    /** Voucher that a trusted key signed, its two lines, and the key that it names. */
    private class VerifiedVoucher(val lines: List<String>, val voucher: Voucher, val key: PublicKey)

    /**
     * Return the message of the class [T], or of any class if T is [Message]. [nowS] is the Unix
     * time, as well as the reader knows it.
     *
     * @throws LimitExceededException like [decode], or if all lines together are longer than twice that
     * @throws MalformedException like [decode], or if there are neither one line nor four
     * @throws UntrustedException no trusted key has vouched for the signer, for this fleet and this time
     */
    inline fun <reified T : Message> open(payload: ByteArray, nowS: Double): T = decode(checked(payload, nowS))

    /** Return the message's own line, after the other lines were checked. */
    fun checked(payload: ByteArray, nowS: Double): ByteArray {
        if (payload.size > SIGNED_BYTES) throw LimitExceededException("signed message of ${payload.size} bytes: at most $SIGNED_BYTES are accepted")
        val breaks = payload.indices.filter { payload[it] == LINE_FEED }
        if (breaks.isNotEmpty() && breaks.size != LINES - 1) {
            throw MalformedException("signed message of ${payload.size} bytes: ${breaks.size + 1} lines, expected $LINES")
        }
        val message = if (breaks.isEmpty()) payload else payload.copyOf(breaks[0])
        if (trusted.isEmpty()) return message
        if (breaks.isEmpty()) throw UntrustedException("message: not signed")
        val ends = breaks + payload.size
        val (signature, voucher, root) = (1 until LINES).map { String(payload, ends[it - 1] + 1, ends[it] - ends[it - 1] - 1) }
        val vouched = vouched(listOf(voucher, root), nowS)
        if (!vouched.key.verify(signatureOf(signature), MESSAGE_CONTEXT + message)) {
            throw UntrustedException("message: its signature was not made with the voucher's key ${vouched.voucher.key.take(12)}")
        }
        return message
    }

    private fun vouched(lines: List<String>, nowS: Double): VerifiedVoucher {
        val vouched = verified?.takeIf { it.lines == lines } ?: verify(lines).also { verified = it }
        val (voucherFleet, _, notAfterS) = vouched.voucher
        if (voucherFleet != fleet) throw UntrustedException("voucher: it is for the fleet $voucherFleet, not $fleet")
        if (!(nowS <= notAfterS)) throw UntrustedException("voucher: it ended ${(nowS - notAfterS).toLong()} s ago")
        return vouched
    }

    private fun verify(lines: List<String>): VerifiedVoucher {
        val text = lines[0].toByteArray()
        val signature = signatureOf(lines[1])
        if (trusted.none { it.verify(signature, VOUCHER_CONTEXT + text) }) {
            throw UntrustedException("voucher: its signature was not made with a trusted key")
        }
        val voucher = decode<Voucher>(text)
        val key = try {
            PublicKey.of(ByteArray(voucher.key.length / 2) { voucher.key.substring(2 * it, 2 * it + 2).toInt(16).toByte() })
        } catch (_: BundleException) {
            throw UntrustedException("voucher: ${voucher.key.take(12)} is not an Ed25519 public key")
        }
        return VerifiedVoucher(lines, voucher, key)
    }

    private fun signatureOf(text: String): ByteArray = try {
        Base64.getDecoder().decode(text)
    } catch (_: IllegalArgumentException) {
        throw MalformedException("signature of ${text.length} characters: not base64")
    }

    private companion object {
        const val SIGNED_BYTES = 2 * MESSAGE_BYTES
        const val LINES = 4
        const val LINE_FEED = '\n'.code.toByte()
        val MESSAGE_CONTEXT = "shoal/1 message\n".toByteArray()
        val VOUCHER_CONTEXT = "shoal/1 voucher\n".toByteArray()
    }
}
