package io.shoal.android

import android.app.ActivityManager
import android.app.ApplicationExitInfo
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
        app = context.packageManager.getPackageInfo(context.packageName, 0).versionName.orEmpty().take(LONGEST),
        lastExit = lastExit(),
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

    /** Return Android's explanation of the last end of the app's process; empty before API 30. */
    private fun lastExit(): String {
        val manager = (if (Build.VERSION.SDK_INT >= 30) context.getSystemService(Context.ACTIVITY_SERVICE) else null) as? ActivityManager
        val exit = manager?.getHistoricalProcessExitReasons(context.packageName, 0, 1)?.firstOrNull() ?: return ""
        return exitText(exit.reason, exit.status)
    }

    private fun unmetered(): Boolean? {
        val manager = context.getSystemService(Context.CONNECTIVITY_SERVICE) as? ConnectivityManager ?: return null
        return if (manager.activeNetwork == null) null else !manager.isActiveNetworkMetered
    }

    companion object {
        private const val LONGEST = 200

        /** Return a text for Android's [reason] of the end of a process, and its [status]. */
        fun exitText(reason: Int, status: Int): String = when {
            reason == ApplicationExitInfo.REASON_LOW_MEMORY -> "Android ended the app's process for lack of memory (exit -9)"
            reason == ApplicationExitInfo.REASON_SIGNALED && status == KILLED ->
                "the app's process was killed (exit -9); Android does so for lack of memory too"
            else -> "the app's process ended with Android's reason $reason and status $status"
        }

        /** Number of the signal that kills a process. */
        private const val KILLED = 9
    }
}
