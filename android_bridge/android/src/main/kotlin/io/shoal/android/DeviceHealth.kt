package io.shoal.android

import android.content.Context
import android.content.Intent
import android.content.IntentFilter
import android.net.ConnectivityManager
import android.os.BatteryManager
import android.os.Build
import android.os.PowerManager
import android.os.SystemClock
import io.shoal.core.Health
import java.io.File

/** Battery, network, storage and use of the phone, as Android reports them. */
internal class DeviceHealth(private val context: Context) {
    /** Return the state for a check-in, with null if Android does not know a value. */
    fun now(): Health = Health(
        batteryPercent = batteryPercent(),
        unmetered = unmetered(),
        hardware = "${Build.MANUFACTURER} ${Build.MODEL}".take(LONGEST),
        freeBytes = freeBytes().takeIf { it >= 0 },
        temperatureC = temperatureC(),
        charging = battery()?.isCharging,
        idle = (context.getSystemService(Context.POWER_SERVICE) as? PowerManager)?.let { !it.isInteractive },
    )

    /** Return the storage that this app may still use (bytes). */
    fun freeBytes(): Long = (context.noBackupFilesDir ?: File("/")).usableSpace

    /** Return the temperature of the phone. */
    fun heat(): Heat = Heat(Build.VERSION.SDK_INT, ::thermalStatus, ::temperatureC, SystemClock::elapsedRealtime)

    private fun thermalStatus(): Int = (context.getSystemService(Context.POWER_SERVICE) as? PowerManager)?.currentThermalStatus ?: 0

    private fun battery(): BatteryManager? = context.getSystemService(Context.BATTERY_SERVICE) as? BatteryManager

    private fun batteryPercent(): Double? {
        val percent = battery()?.getIntProperty(BatteryManager.BATTERY_PROPERTY_CAPACITY) ?: return null
        return percent.takeIf { it in 0..100 }?.toDouble() // Int.MIN_VALUE means unknown
    }

    /** Return the temperature of the battery, which Android gives in tenths of a degree. */
    private fun temperatureC(): Double? {
        val state = context.registerReceiver(null, IntentFilter(Intent.ACTION_BATTERY_CHANGED)) ?: return null
        return state.getIntExtra(BatteryManager.EXTRA_TEMPERATURE, Int.MIN_VALUE).takeIf { it in -400..1500 }?.let { it / 10.0 }
    }

    private fun unmetered(): Boolean? {
        val manager = context.getSystemService(Context.CONNECTIVITY_SERVICE) as? ConnectivityManager ?: return null
        return if (manager.activeNetwork == null) null else !manager.isActiveNetworkMetered
    }

    private companion object {
        const val LONGEST = 200
    }
}
