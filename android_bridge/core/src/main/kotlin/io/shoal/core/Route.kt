package io.shoal.core

import java.io.IOException
import java.net.InetAddress
import java.net.Socket

/** How a broker is reached: by the system's network, or by the one that Android gave a job. */
@InternalShoalApi
public interface Route {
    /**
     * All addresses of a host, in the order in which they are to be tried.
     *
     * @throws IOException nobody knows the host
     */
    @Throws(IOException::class)
    public fun addresses(host: String): List<InetAddress>

    /** A socket that is not connected yet. */
    @Throws(IOException::class)
    public fun socket(): Socket

    /** By the system's network. */
    public object System : Route {
        override fun addresses(host: String): List<InetAddress> = InetAddress.getAllByName(host).toList()

        override fun socket(): Socket = Socket()
    }
}
