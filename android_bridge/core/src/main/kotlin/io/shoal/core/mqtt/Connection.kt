package io.shoal.core.mqtt

import io.shoal.core.BrokerAddress
import io.shoal.core.LinkException
import io.shoal.core.Will
import io.shoal.core.wire.PacketLimit
import java.io.BufferedInputStream
import java.io.Closeable
import java.io.DataInputStream
import java.io.EOFException
import java.io.FilterInputStream
import java.io.IOException
import java.io.InputStream
import java.net.InetSocketAddress
import java.net.Socket
import java.net.SocketException
import java.net.UnknownHostException
import java.util.concurrent.locks.ReentrantLock
import javax.net.ssl.SSLContext
import javax.net.ssl.SSLException
import javax.net.ssl.SSLSocket
import kotlin.concurrent.withLock

/** Connection to a broker, from its CONNACK until an error. Several threads may write. */
internal class Connection private constructor(private val socket: Socket, val is5: Boolean, private val payloadLimit: (String) -> Int) :
    Closeable {
    /** Longest time without a packet. */
    var keepAliveMs = 0L
        private set

    /** Maximum number of publications without an acknowledgement. */
    var mostInFlight = IN_FLIGHT
        private set

    /** Broker's limit of packets. */
    var limit = PacketLimit.MQTT
        private set
    private val input = DataInputStream(BufferedInputStream(Watched(socket.getInputStream()), CHUNK))
    private val output = socket.getOutputStream()
    private val writing = ReentrantLock()

    @Volatile private var lastWrittenMs = nowMs()

    /** Time of the ping that has no answer yet; 0 if there is none. */
    @Volatile private var pingedMs = 0L

    /** Return the next packet, and wait for it if necessary. */
    fun read(): Packet = readPacket(input, is5, payloadLimit)

    /** True if it was not closed here. */
    val isOpen: Boolean get() = !socket.isClosed

    /** Send the parts of one packet. */
    fun write(vararg parts: ByteArray): Unit = writing.withLock {
        for (part in parts) {
            for (start in part.indices step CHUNK) {
                output.write(part, start, minOf(CHUNK, part.size - start))
                lastWrittenMs = nowMs()
            }
        }
        output.flush()
    }

    /**
     * Ping a broker that received nothing for half of the keep-alive time, and close a connection
     * whose ping had no answer, or whose current packet made no progress, for the whole of it.
     * Called every few seconds.
     */
    fun watch() {
        val nowMs = nowMs()
        val stuck = pingedMs != 0L && nowMs - pingedMs > keepAliveMs
        if (!writing.tryLock()) {
            if (stuck || nowMs - lastWrittenMs > keepAliveMs) close()
            return
        }
        try {
            if (stuck) {
                close()
            } else if (nowMs - lastWrittenMs > keepAliveMs / 2) {
                if (pingedMs == 0L) pingedMs = nowMs
                write(Packets.PING)
            }
        } catch (_: IOException) {
            close()
        } finally {
            writing.unlock()
        }
    }

    /** Close it without a DISCONNECT packet, so that the broker publishes the will. */
    override fun close() {
        try {
            socket.close()
        } catch (_: IOException) {
            // it is closed already
        }
    }

    /**
     * Take over the limits that the broker named.
     *
     * @throws LinkException Shoal lacks something at this broker
     */
    private fun obey(said: BrokerLimits, address: BrokerAddress, clientId: String, keepAliveS: Int) {
        val lack = said.objection()
        if (lack.isNotEmpty()) throw LinkException("broker $address does not serve client '$clientId': it says in its CONNACK that $lack")
        keepAliveMs = (said.keepAliveS?.takeIf { it > 0 } ?: keepAliveS) * 1000L
        mostInFlight = minOf(IN_FLIGHT, said.receiveMaximum ?: IN_FLIGHT)
        val limits = arrayListOf(PacketLimit.MQTT)
        said.maxPacket?.let { limits += PacketLimit(it, "broker $address says in its CONNACK that packets have at most $it bytes") }
        val inAddress = address.maxPacket
        if (inAddress != null) {
            limits += PacketLimit(inAddress, "the address $address sets max_packet")
        } else if (!is5) {
            val why = "which names no limit, so packets have at most $UNNAMED_PACKET bytes (max_packet in its address sets another limit)"
            limits += PacketLimit(UNNAMED_PACKET, "broker $address speaks MQTT 3.1.1, $why")
        }
        limit = limits.minBy { it.bytes }
    }

    /**
     * Stream that registers that the broker is alive whenever bytes come, also in the middle of a
     * long packet.
     */
    private inner class Watched(stream: InputStream) : FilterInputStream(stream) {
        override fun read(): Int = super.read().also { pingedMs = 0 }

        override fun read(bytes: ByteArray, offset: Int, length: Int): Int = super.read(bytes, offset, length).also { pingedMs = 0 }
    }

    companion object {
        private const val CHUNK = 64 * 1024
        private const val ANSWER_MS = 10_000
        private const val IN_FLIGHT = 20

        /** Largest packet over MQTT 3.1.1, where a broker cannot name its limit. */
        private const val UNNAMED_PACKET = 1 shl 17
        private const val OTHER_VERSION = 0x84

        /** Reasons of MQTT 5 for those of MQTT 3.1.1. */
        private val REASONS = mapOf(1 to OTHER_VERSION, 2 to 0x85, 3 to 0x88, 4 to 0x86, 5 to 0x87)

        /** Reasons for which another attempt would be in vain. */
        private val REFUSALS = mapOf(
            0x85 to "it does not accept the client id; does it have a rule for client ids?",
            0x86 to "wrong user name or password",
            0x87 to "not authorized; are the user, the password and the certificate right, and may they use this client id?",
            0x8a to "the broker has banned this client",
            0x8c to "it has another method of authentication than user, password and certificate",
            0x90 to "the topic of the will is not valid; does the broker permit topics of six levels, such as shoal/1/FLEET/device/ID/status?",
            0x95 to "it takes only smaller packets",
            0x9a to "it retains no messages, and Shoal needs retained messages",
            0x9b to "it does not take QoS 1, and Shoal needs it",
        )

        /** Refusal of an MQTT version. */
        private class OtherVersionException(message: String, cause: IOException? = null) : IOException(message, cause)

        /**
         * Connect and log in to a persistent session, at the first of the host's addresses that
         * accepts a connection, with the first MQTT version that the broker speaks.
         *
         * @throws LinkException the broker's certificate is not trusted, or the broker refuses this
         *   client: trying again would not help
         * @throws IOException no broker answers
         */
        fun open(address: BrokerAddress, clientId: String, will: Will?, keepAliveS: Int, limit: (String) -> Int): Connection {
            var refusal: OtherVersionException? = null
            for (version in address.versions) {
                try {
                    return open(address, clientId, will, keepAliveS, limit, version == "5")
                } catch (error: OtherVersionException) {
                    refusal = error
                }
            }
            throw refusal!!
        }

        private fun open(address: BrokerAddress, clientId: String, will: Will?, keepAliveS: Int, limit: (String) -> Int, is5: Boolean): Connection {
            val plain = connected(address)
            try {
                plain.tcpNoDelay = true
                plain.soTimeout = ANSWER_MS
                val socket = address.tls?.let { secured(plain, address, it) } ?: plain
                val connection = Connection(socket, is5, limit)
                val last = will?.let { it.topic to it.payload }
                val packet = try {
                    connection.write(Packets.connect(clientId, keepAliveS, last, address.username, address.password, is5))
                    connection.read()
                } catch (error: EOFException) {
                    throw OtherVersionException("it closed the connection without an answer to MQTT ${if (is5) "5" else "3.1.1"}", error)
                }
                val answer = packet as? Packet.ConnAck ?: throw ProtocolException("the broker's first packet is not a CONNACK")
                if (answer.code != 0) refused(address, clientId, REASONS[answer.code] ?: answer.code)
                connection.obey(answer.limits, address, clientId, keepAliveS)
                socket.soTimeout = 0
                return connection
            } catch (error: Throwable) {
                plain.close()
                throw error
            }
        }

        /**
         * Return a connected socket. A host may have an address of each family, of which the
         * phone's network supports one.
         */
        private fun connected(address: BrokerAddress): Socket {
            val failures = ArrayList<IOException>()
            for (each in address.route.addresses(address.host)) {
                val socket = address.route.socket()
                try {
                    socket.connect(InetSocketAddress(each, address.port), ANSWER_MS)
                    return socket
                } catch (error: IOException) {
                    socket.close()
                    failures += error
                }
            }
            val first = failures.firstOrNull() ?: throw UnknownHostException(address.host)
            failures.drop(1).forEach(first::addSuppressed)
            throw first
        }

        private fun secured(plain: Socket, address: BrokerAddress, context: SSLContext): Socket {
            val socket = context.socketFactory.createSocket(plain, address.host, address.port, true) as SSLSocket
            socket.enabledProtocols = socket.supportedProtocols.filter { it == "TLSv1.2" || it == "TLSv1.3" }.toTypedArray()
            socket.sslParameters = socket.sslParameters.apply { endpointIdentificationAlgorithm = "HTTPS" }
            socket.soTimeout = ANSWER_MS // Android's sockets ignore the timeout of the socket below
            try {
                socket.startHandshake()
            } catch (error: SSLException) {
                val lost = generateSequence<Throwable>(error) { it.cause }.any { it is EOFException || it is SocketException }
                if (lost) throw error // the broker closed the connection, perhaps to restart
                throw LinkException("broker $address: TLS failed: ${error.message}", error)
            }
            return socket
        }

        private fun refused(address: BrokerAddress, clientId: String, code: Int): Nothing {
            if (code == OTHER_VERSION) throw OtherVersionException("it does not speak this version of MQTT")
            val why = REFUSALS[code] ?: throw ProtocolException("the broker refused the connection with code $code")
            throw LinkException("broker $address refused client '$clientId': $why")
        }

        private fun nowMs() = System.nanoTime() / 1_000_000
    }
}
