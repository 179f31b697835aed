package io.shoal.core.mqtt

import io.shoal.core.BrokerAddress
import io.shoal.core.LinkException
import io.shoal.core.Will
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
internal class Connection private constructor(private val socket: Socket, private val keepAliveMs: Long, private val limit: (String) -> Int) :
    Closeable {
    private val input = DataInputStream(BufferedInputStream(Watched(socket.getInputStream()), CHUNK))
    private val output = socket.getOutputStream()
    private val writing = ReentrantLock()

    @Volatile private var lastWrittenMs = nowMs()

    /** Time of the ping that has no answer yet; 0 if there is none. */
    @Volatile private var pingedMs = 0L

    /** Return the next packet, and wait for it if necessary. */
    fun read(): Packet = readPacket(input, limit)

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
        private val REFUSALS = mapOf(
            1 to "it does not support MQTT 3.1.1",
            2 to "it does not accept the client id",
            3 to "it is not available",
            4 to "wrong user name or password",
            5 to "not authorized",
        )

        /**
         * Connect and log in to a persistent session, at the first of the host's addresses that
         * accepts a connection.
         *
         * @throws LinkException the broker's certificate is not trusted, or the broker refuses this
         *   client: trying again would not help
         * @throws IOException no broker answers
         */
        fun open(address: BrokerAddress, clientId: String, will: Will?, keepAliveS: Int, limit: (String) -> Int): Connection {
            val plain = connected(address)
            try {
                plain.tcpNoDelay = true
                plain.soTimeout = ANSWER_MS
                val socket = address.tls?.let { secured(plain, address, it) } ?: plain
                val connection = Connection(socket, keepAliveS * 1000L, limit)
                val last = will?.let { it.topic to it.payload }
                connection.write(Packets.connect(clientId, keepAliveS, last, address.username, address.password))
                val answer = connection.read() as? Packet.ConnAck ?: throw ProtocolException("the broker's first packet is not a CONNACK")
                if (answer.code != 0) refused(address, clientId, answer.code)
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
            val why = REFUSALS[code] ?: "code $code"
            if (code == 3) throw ProtocolException(why)
            throw LinkException("broker $address refused client '$clientId': $why")
        }

        private fun nowMs() = System.nanoTime() / 1_000_000
    }
}
