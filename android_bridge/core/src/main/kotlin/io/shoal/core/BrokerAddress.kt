package io.shoal.core

import java.net.URI
import java.net.URISyntaxException
import java.net.URLDecoder
import javax.net.ssl.SSLContext

/**
 * Address of a broker.
 *
 * @property tls TLS settings; the broker's certificate must be valid for [host]. Null means no TLS.
 * @property route network over which the broker is reached
 */
@InternalShoalApi
public class BrokerAddress(
    public val host: String,
    public val port: Int,
    public val username: String? = null,
    public val password: String? = null,
    public val tls: SSLContext? = null,
    public val route: Route = Route.System,
) {
    override fun toString(): String = "${if (tls == null) "mqtt" else "mqtts"}://$host:$port"

    public companion object {
        /**
         * Parse `mqtt://[USER:PASSWORD@]HOST[:PORT]`, or `mqtts://` for TLS.
         *
         * @param tls context for `mqtts://` ([TlsFiles.context], or one whose key lies in the
         *   Android keystore); null: the system's authorities are trusted
         * @throws ConfigException the text is no such address
         */
        @JvmOverloads
        public fun parse(url: String, tls: SSLContext? = null, route: Route = Route.System): BrokerAddress {
            val uri = try {
                URI(url)
            } catch (error: URISyntaxException) {
                throw ConfigException("broker address '$url': ${error.reason}", error)
            }
            if (uri.scheme !in setOf("mqtt", "mqtts") || uri.host.isNullOrEmpty()) {
                throw ConfigException("broker address '$url': expected mqtt://HOST[:PORT] or mqtts://HOST[:PORT]")
            }
            val secure = uri.scheme == "mqtts"
            if (!secure && tls != null) throw ConfigException("broker address '$url': certificates need an address that begins with mqtts://")
            val user = uri.rawUserInfo?.split(":", limit = 2)?.map { URLDecoder.decode(it, "UTF-8") }
            val port = if (uri.port != -1) uri.port else if (secure) 8883 else 1883
            val context = if (secure) tls ?: SSLContext.getDefault() else null
            return BrokerAddress(uri.host.removeSurrounding("[", "]"), port, user?.get(0), user?.getOrNull(1), context, route)
        }
    }
}
