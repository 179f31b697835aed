package io.shoal.core.wire

import io.shoal.core.BundleException
import io.shoal.core.LimitExceeded
import io.shoal.core.Malformed
import io.shoal.core.Untrusted
import java.util.Base64

/**
 * Opens what an aggregator signed (`wire/SPEC.md`, 'Signatures'), for one fleet. A signed message has four lines: the message, a signature of
 * it by a service key, the voucher for that key, a signature of the voucher by a root key in [trusted]. Without trusted keys every message
 * is believed, signed or not. Used by one thread.
 */
internal class Verifier(private val fleet: String, private val trusted: List<PublicKey>) {
    private var verified: Vouched? = null

    /** A voucher that a trusted key signed, the two lines it came in, and the key that it names. */
    private class Vouched(val lines: List<String>, val voucher: Voucher, val key: PublicKey)

    /**
     * The message of the class [T], or of any where T is [Message]. [nowS]: Unix time, as well as the reader knows it.
     *
     * @throws LimitExceeded as [decode]; or all lines together are longer than twice that
     * @throws Malformed as [decode]; or there are neither one line nor four
     * @throws Untrusted not signed by a key that a trusted one has vouched for, for this fleet and this time
     */
    inline fun <reified T : Message> open(payload: ByteArray, nowS: Double): T = decode(checked(payload, nowS))

    /** The message's own line, once the others have been checked. */
    fun checked(payload: ByteArray, nowS: Double): ByteArray {
        if (payload.size > SIGNED_BYTES) throw LimitExceeded("signed message of ${payload.size} bytes: at most $SIGNED_BYTES are accepted")
        val breaks = payload.indices.filter { payload[it] == LINE_FEED }
        if (breaks.isNotEmpty() && breaks.size != LINES - 1) {
            throw Malformed("signed message of ${payload.size} bytes: ${breaks.size + 1} lines, expected $LINES")
        }
        val message = if (breaks.isEmpty()) payload else payload.copyOf(breaks[0])
        if (trusted.isEmpty()) return message
        if (breaks.isEmpty()) throw Untrusted("message: it is not signed")
        val ends = breaks + payload.size
        val (signature, voucher, root) = (1 until LINES).map { String(payload, ends[it - 1] + 1, ends[it] - ends[it - 1] - 1) }
        val vouched = vouched(listOf(voucher, root), nowS)
        if (!vouched.key.verify(signatureOf(signature), MESSAGE_CONTEXT + message)) {
            throw Untrusted("message: its signature was not made with the key ${vouched.voucher.key.take(12)}, which the voucher names")
        }
        return message
    }

    private fun vouched(lines: List<String>, nowS: Double): Vouched {
        val vouched = verified?.takeIf { it.lines == lines } ?: verify(lines).also { verified = it }
        val (voucherFleet, _, notAfterS) = vouched.voucher
        if (voucherFleet != fleet) throw Untrusted("voucher: for the fleet $voucherFleet, not for $fleet")
        if (!(nowS <= notAfterS)) throw Untrusted("voucher: its time was over ${(nowS - notAfterS).toLong()} s ago")
        return vouched
    }

    private fun verify(lines: List<String>): Vouched {
        val text = lines[0].toByteArray()
        val signature = signatureOf(lines[1])
        if (trusted.none { it.verify(signature, VOUCHER_CONTEXT + text) }) {
            throw Untrusted("voucher: its signature was not made with a trusted key")
        }
        val voucher = decode<Voucher>(text)
        val key = try {
            PublicKey.of(ByteArray(voucher.key.length / 2) { voucher.key.substring(2 * it, 2 * it + 2).toInt(16).toByte() })
        } catch (_: BundleException) {
            throw Untrusted("voucher: ${voucher.key.take(12)} is not an Ed25519 public key")
        }
        return Vouched(lines, voucher, key)
    }

    private fun signatureOf(text: String): ByteArray = try {
        Base64.getDecoder().decode(text)
    } catch (_: IllegalArgumentException) {
        throw Malformed("signature of ${text.length} characters: not base64")
    }

    private companion object {
        const val SIGNED_BYTES = 2 * MESSAGE_BYTES
        const val LINES = 4
        const val LINE_FEED = '\n'.code.toByte()
        val MESSAGE_CONTEXT = "shoal/1 message\n".toByteArray()
        val VOUCHER_CONTEXT = "shoal/1 voucher\n".toByteArray()
    }
}
