package io.shoal.core

import java.io.ByteArrayOutputStream
import java.nio.ByteBuffer
import java.nio.charset.CharacterCodingException
import java.util.Locale
import javax.net.ssl.SSLContext

/**
 * Address of a broker.
 *
 * @property tls TLS settings; the broker's certificate must be valid for [host]. Null means no TLS.
 * @property route network over which the broker is reached
 * @property versions MQTT versions, which are tried in order
 * @property maxPacket size of the largest packet, which the broker does not name; null for none
 */
@InternalShoalApi
public class BrokerAddress(
    public val host: String,
    public val port: Int,
    public val username: String? = null,
    public val password: String? = null,
    public val tls: SSLContext? = null,
    public val route: Route = Route.System,
    public val versions: List<String> = VERSIONS,
    public val maxPacket: Int? = null,
) {
    /**
     * Return the address with a user and a password beside those in the text; null for none.
     *
     * @throws ConfigException the text has a user already, or there is no user
     */
    public fun login(user: String?, password: String?): BrokerAddress {
        if (user == null && password == null) return this
        if (user != null && username != null) throw ConfigException("broker $this: the user and the password stand in its address already")
        val name = user ?: username ?: throw ConfigException("broker $this: there is a password without a user")
        return BrokerAddress(host, port, name, password ?: this.password, tls, route, versions, maxPacket)
    }

    override fun toString(): String {
        val named = (if (versions == VERSIONS) emptyList() else versions.map { "version=$it" }) + listOfNotNull(maxPacket?.let { "max_packet=$it" })
        val query = if (named.isEmpty()) "" else named.joinToString("&", "?")
        return "${if (tls == null) "mqtt" else "mqtts"}://${if (':' in host) "[$host]" else host}:$port$query"
    }

    public companion object {
        private val VERSIONS = listOf("5", "3.1.1")
        private const val LEAST_PACKET = 4096
        private const val MOST_PACKET = (1 shl 28) - 1
        private const val SIGN = """[^\s/?#\[\]@%:\\"<>^`{|}]|%[0-9A-Fa-f]{2}"""
        private val LOGIN = Regex("((?:$SIGN)*)(?::((?:$SIGN|:)*))?")
        private val ADDRESS = Regex(
            """(mqtts?)://(?:([\s\S]*)@)?(\[[0-9A-Fa-f:.]+\]|[^\s:/?#@\[\]]+)(?::([0-9]{1,5}))?/?(?:\?([^#@]*))?""",
            RegexOption.IGNORE_CASE,
        )

        /**
         * Parse `mqtt://[USER:PASSWORD@]HOST[:PORT][?version=5|3.1.1&max_packet=BYTES]`, or
         * `mqtts://` for TLS. In USER and PASSWORD, a sign such as # or / is %NN.
         *
         * @param tls context for `mqtts://` ([TlsFiles.context], or one whose key lies in the
         *   Android keystore); null: the system's authorities are trusted
         * @throws ConfigException the text is no such address; the error has no password
         */
        @JvmOverloads
        public fun parse(url: String, tls: SSLContext? = null, route: Route = Route.System): BrokerAddress {
            fun refuse(why: String): Nothing = throw ConfigException("broker address '${shown(url)}': $why")
            val parts = ADDRESS.matchEntire(url)?.groupValues
            val login = LOGIN.matchEntire(parts?.get(2).orEmpty())
            if ('@' in url && (parts == null || login == null)) {
                refuse("in the user and the password, write each of / ? # @ [ ] % as %NN (# is %23), or set them apart, as they are")
            }
            if (parts == null || login == null) refuse("expected mqtt://[USER:PASSWORD@]HOST[:PORT], or mqtts:// for TLS")
            val secure = parts[1].length > "mqtt".length
            val port = if (parts[4].isEmpty()) (if (secure) 8883 else 1883) else parts[4].toInt()
            if (port !in 1..0xffff) refuse("the port must be between 1 and 65535, got $port")
            val named = parts[5].split("&").filter { it.isNotEmpty() }.map { it.substringBefore("=") to it.substringAfter("=", "") }
            named.firstOrNull { it.first != "version" && it.first != "max_packet" }?.let {
                refuse("'${it.first}' is unknown; version and max_packet may follow the ?")
            }
            val versions = named.filter { it.first == "version" }.map { it.second }.ifEmpty { VERSIONS }
            versions.firstOrNull { it !in VERSIONS }?.let { refuse("version must be 5 or 3.1.1, got '$it'") }
            val most = named.lastOrNull { it.first == "max_packet" }?.second
            val maxPacket = most?.takeIf { Regex("[0-9]{1,9}").matches(it) }?.toInt()
            if (most != null && maxPacket !in LEAST_PACKET..MOST_PACKET) refuse("max_packet must be between $LEAST_PACKET and $MOST_PACKET bytes, got '$most'")
            if (!secure && tls != null) refuse("certificates need mqtts://")
            val user = login.groupValues[1].ifEmpty { null }?.let(::decoded)
            val password = login.groupValues[2].ifEmpty { null }?.let(::decoded)
            val context = if (secure) tls ?: SSLContext.getDefault() else null
            val host = parts[3].removeSurrounding("[", "]").lowercase(Locale.ROOT)
            return BrokerAddress(host, port, user, password, context, route, versions, maxPacket)
        }

        /** Return an address without what may be a user and a password. */
        internal fun shown(url: String): String {
            val scheme = Regex("^[A-Za-z]*://").find(url)?.value.orEmpty()
            if ('@' in url) return "$scheme***@${url.substringAfterLast('@')}"
            return scheme + url.removePrefix(scheme).replace(Regex(""":(?!\d+(?:[/?].*)?$)[\s\S]*"""), ":***")
        }

        /** Return a text with its %NN as bytes of UTF-8. Unlike `URLDecoder`, it keeps a plus. */
        private fun decoded(text: String): String {
            val bytes = ByteArrayOutputStream()
            var at = 0
            while (at < text.length) {
                val end = if (text[at] == '%') at + 3 else text.offsetByCodePoints(at, 1)
                bytes.write(if (text[at] == '%') byteArrayOf(text.substring(at + 1, end).toInt(16).toByte()) else text.substring(at, end).toByteArray())
                at = end
            }
            return try {
                Charsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes.toByteArray())).toString()
            } catch (_: CharacterCodingException) {
                throw ConfigException("broker address: the user or the password is not UTF-8")
            }
        }
    }
}
