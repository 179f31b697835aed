package io.shoal.core

/** Owner of a state folder: a device of a fleet. */
@InternalShoalApi
public data class Owner(val deviceId: String, val fleet: String) {
    override fun toString(): String = "device $deviceId of fleet $fleet"
}
