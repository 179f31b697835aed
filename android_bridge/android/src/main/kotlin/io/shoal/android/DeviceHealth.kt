package io.shoal.android

import android.content.Context
import android.net.ConnectivityManager
import android.os.BatteryManager
import io.shoal.core.Health
import java.io.File

/** What Android says of battery, network and storage. */
internal class DeviceHealth(private val context: Context) {
    /** For a check-in; null where Android does not know. */
    fun now(): Health = Health(batteryPercent(), unmetered())

    /** Storage that this app may still take, in bytes. */
    fun freeBytes(): Long = (context.noBackupFilesDir ?: File("/")).usableSpace

    private fun batteryPercent(): Double? {
        val manager = context.getSystemService(Context.BATTERY_SERVICE) as? BatteryManager ?: return null
        val percent = manager.getIntProperty(BatteryManager.BATTERY_PROPERTY_CAPACITY)
        return percent.takeIf { it in 0..100 }?.toDouble() // Int.MIN_VALUE: not known
    }

    private fun unmetered(): Boolean? {
        val manager = context.getSystemService(Context.CONNECTIVITY_SERVICE) as? ConnectivityManager ?: return null
        return if (manager.activeNetwork == null) null else !manager.isActiveNetworkMetered
    }
}
