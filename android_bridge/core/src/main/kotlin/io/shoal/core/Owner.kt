package io.shoal.core

/** Whose a state is: a device of a fleet. [fleet] is empty where what an older version stored does not say it. */
@InternalShoalApi
public data class Owner(val deviceId: String, val fleet: String = "") {
    /** Whether this state may be used by [other]. */
    internal fun permits(other: Owner): Boolean = deviceId == other.deviceId && fleet in listOf("", other.fleet)

    override fun toString(): String = "device $deviceId" + if (fleet.isEmpty()) "" else " of fleet $fleet"
}
