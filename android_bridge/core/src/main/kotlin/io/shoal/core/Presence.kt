package io.shoal.core

import io.shoal.core.wire.CheckIn
import io.shoal.core.wire.DeviceStatus
import io.shoal.core.wire.Message

/** What a device says of itself: that it is here, and what it has and permits. [publish] takes the kind of its topic, and whether it is retained. */
internal class Presence(
    private val self: Identity,
    private val around: Surroundings,
    private val publish: (String, Message, Boolean) -> Unit,
) {
    private var nextS = Double.POSITIVE_INFINITY

    /** Whether the broker is there, as far as the device has heard. */
    var connected: Boolean = false

    /** Says that the device is here, if it has not for a while: before the aggregator would wonder. */
    fun beat() {
        if (connected && around.clock.steadySeconds() >= nextS) sayHere()
    }

    /** Says that the device is here, and what it has; [bundle] is the digest of the one that is loaded, or empty. */
    fun checkIn(bundle: String) {
        sayHere()
        val health = (contained { around.health() } as? Contained.Done)?.value ?: Health() // an app's own code is no reason to stay away
        val message = CheckIn(
            deviceId = self.deviceId,
            numTrain = around.windows.numTrain.toLong(),
            numTest = around.windows.numTest.toLong(),
            bundle = bundle,
            client = "shoal",
            runtime = around.loader.runtime,
            batteryPercent = health.batteryPercent,
            unmetered = health.unmetered,
            policy = self.policy,
        )
        publish("check-in", message, false)
    }

    private fun sayHere() {
        publish("status", DeviceStatus(self.deviceId, true), true)
        nextS = around.clock.steadySeconds() + HEARTBEAT_S
    }

    private companion object {
        /** A connected device says at least every 60 s that it is here. */
        const val HEARTBEAT_S = 45.0
    }
}
