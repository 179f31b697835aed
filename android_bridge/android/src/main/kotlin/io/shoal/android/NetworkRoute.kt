package io.shoal.android

import android.net.Network
import io.shoal.core.Route
import java.net.InetAddress
import java.net.Socket

/**
 * The network that Android gave a job. Names are looked up there too, and no VPN or other network
 * of the phone is used.
 */
internal class NetworkRoute(private val network: Network) : Route {
    override fun addresses(host: String): List<InetAddress> = network.getAllByName(host).toList()

    override fun socket(): Socket = network.socketFactory.createSocket()
}
