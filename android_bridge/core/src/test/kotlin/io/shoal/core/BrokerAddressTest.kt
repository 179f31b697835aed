package io.shoal.core

import javax.net.ssl.SSLContext
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertNotNull
import kotlin.test.assertNull

class BrokerAddressTest {
    @Test
    fun `addresses are read`() {
        val plain = BrokerAddress.parse("mqtt://user%40x:p%3Aq@host.example")
        assertEquals(listOf("host.example", "1883", "user@x", "p:q"), listOf(plain.host, "${plain.port}", plain.username, plain.password))
        assertNull(plain.tls)
        val secured = BrokerAddress.parse("mqtts://[::1]:99")
        assertEquals(Pair("::1", 99), Pair(secured.host, secured.port))
        assertNotNull(secured.tls)
        assertEquals(8883, BrokerAddress.parse("mqtts://h").port)
        assertEquals("mqtts://h:8883", BrokerAddress.parse("mqtts://h").toString())
    }

    @Test
    fun `what is no address is refused`() {
        for (url in listOf("", "localhost", "http://h", "mqtt://", "mqtt://h:port", "mqtt://a b")) {
            assertFailsWith<ConfigException>(url) { BrokerAddress.parse(url) }
        }
        assertFailsWith<ConfigException> { BrokerAddress.parse("mqtt://h", SSLContext.getDefault()) }
    }
}
