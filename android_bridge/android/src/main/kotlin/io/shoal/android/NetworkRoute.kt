package io.shoal.android

import android.net.Network
import io.shoal.core.Route
import java.net.InetAddress
import java.net.Socket

/** By the network that Android gave a job: names are looked up there too, and a VPN or another network of the phone is not used. */
internal class NetworkRoute(private val network: Network) : Route {
    override fun addresses(host: String): List<InetAddress> = network.getAllByName(host).toList()

    override fun socket(): Socket = network.socketFactory.createSocket()
}
