package io.shoal.core

import io.shoal.core.wire.Fields
import io.shoal.core.wire.JsonArray
import io.shoal.core.wire.JsonObject
import io.shoal.core.wire.JsonString
import io.shoal.core.wire.parseJson
import java.io.File
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertFalse
import kotlin.test.assertIs
import kotlin.test.assertNotEquals
import kotlin.test.assertTrue

class EnrolmentTest {
    private val vectors = (parseJson(File(repository, "wire/vectors/enrolment.json").readBytes()) as JsonObject).fields
    private val key = MemoryKey()

    /** A service of the Python side: its address, and tokens by their kind. */
    private val service by lazy { Fields(parseJson(fromPython("enrolment.json").readBytes()), "service") }
    private val enrolment by lazy { Enrolment(service.string("url")) }

    @Test
    fun `the nonce of an attestation is that of every implementation`() {
        val vector = Fields(vectors.getValue("attestation"), "attestation")
        val publicKey = vector.string("public_key").chunked(2).map { it.toInt(16).toByte() }.toByteArray()
        assertEquals(vector.string("nonce"), attestationNonce(vector.string("token"), publicKey))
    }

    @Test
    fun `tokens are read and others are refused`() {
        for (vector in (vectors.getValue("tokens") as JsonArray).items) {
            val token = EnrolmentToken.parse(Fields(vector, "token").string("token"))
            assertEquals(Fields(vector, "token").string("secret"), hex(token.secret))
            assertEquals(Fields(vector, "token").string("authority"), token.authority)
        }
        for (text in (vectors.getValue("refused_tokens") as JsonArray).items) {
            assertFailsWith<ConfigException> { EnrolmentToken.parse((text as JsonString).value) }
        }
    }

    @Test
    fun `a device is enrolled, also twice, and renews`() {
        val first = assertIs<EnrolmentAnswer.Done>(enrolment.enrol(service.string("good"), key, "phone-1")).enrolled
        val again = assertIs<EnrolmentAnswer.Done>(enrolment.enrol(service.string("good"), key, "phone-1")).enrolled
        assertEquals(listOf("phone-1", "default", "mqtts://broker.example"), listOf(first.deviceId, first.fleet, first.broker))
        assertEquals(first.certificate, again.certificate)
        assertFalse(enrolment.isDue(first.certificate))
        assertTrue(Enrolment(service.string("url")) { System.currentTimeMillis() + 60L * 86_400_000 }.isDue(first.certificate))
        assertNotEquals(first.certificate, enrolment.renew(first.certificate, first.authority, key))
        assertFailsWith<ConfigException> { enrolment.renew(first.certificate, first.authority, MemoryKey()) }
    }

    @Test
    fun `what is refused says why`() {
        service // skips the test without one, and not inside of an assertion
        assertRefused("used: pi-1 has used this token, with another key") { enrolment.enrol(service.string("used"), key) }
        assertRefused("other-name: this token is for phone-9") { enrolment.enrol(service.string("bound"), key, "phone-2") }
        assertRefused("device id") { enrolment.enrol(service.string("bound"), key, "../x") }
        assertIs<EnrolmentAnswer.Waiting>(enrolment.enrol(service.string("approve"), key, "phone-3"))
    }

    @Test
    fun `another service gets nothing`() {
        service // skips the test without one, and not inside of an assertion
        assertRefused("its authority must have the token's fingerprint") { enrolment.enrol(service.string("elsewhere"), key) }
        assertFailsWith<LinkException> { Enrolment(service.string("url").replace("localhost", "127.0.0.1")).enrol(service.string("approve"), key) }
        assertFailsWith<LinkException> { Enrolment("https://localhost:1").enrol(service.string("approve"), key) }
        for (wrong in listOf("http://localhost", "localhost", "https://localhost/x")) assertFailsWith<ConfigException>(wrong) { Enrolment(wrong) }
    }

    @Test
    fun `a certificate that is not valid by the device's clock is not taken`() {
        val late = Enrolment(service.string("url")) { System.currentTimeMillis() + 100L * 86_400_000 }
        assertRefused("not valid by this device's clock") { late.enrol(service.string("clock"), key) }
    }

    private fun assertRefused(text: String, act: () -> Unit) {
        val error = assertFailsWith<ConfigException> { act() }
        assertTrue(text in error.message.orEmpty(), error.message)
    }
}
