package io.shoal.core

import java.io.IOException
import java.net.InetAddress
import java.net.Socket

/** Network over which a broker is reached: the system's, or the one that Android gave a job. */
@InternalShoalApi
public interface Route {
    /**
     * Return all addresses of a host, in the order in which they are to be tried.
     *
     * @throws IOException the host is unknown
     */
    @Throws(IOException::class)
    public fun addresses(host: String): List<InetAddress>

    /** Return a socket that is not connected yet. */
    @Throws(IOException::class)
    public fun socket(): Socket

    /** The system's network. */
    public object System : Route {
        override fun addresses(host: String): List<InetAddress> = InetAddress.getAllByName(host).toList()

        override fun socket(): Socket = Socket()
    }
}
