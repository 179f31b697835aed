package io.shoal.recording

import android.app.Service
import android.content.pm.ServiceInfo
import io.shoal.core.ConfigException
import java.io.File
import javax.xml.parsers.DocumentBuilderFactory
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertIs

class RecordingServiceTest {
    private val manifest = DocumentBuilderFactory.newInstance().newDocumentBuilder()
        .parse(File(System.getProperty("shoal.root") ?: "../..", "android_bridge/recording/src/main/AndroidManifest.xml"))

    private fun attributes(tag: String, name: String): List<String> = manifest.getElementsByTagName(tag).let { nodes ->
        List(nodes.length) { nodes.item(it).attributes.getNamedItem(name)?.nodeValue.orEmpty() }
    }

    private val permissions = attributes("uses-permission", "android:name").map { it.removePrefix("android.permission.") }

    /** Rules of Android's documentation for `startForeground` with the type `health`. */
    private inner class Android(private val sdk: Int, private val isInUse: Boolean, private val permissions: List<String>) {
        val events = ArrayList<String>()

        fun startForeground(type: Int?) {
            if ("FOREGROUND_SERVICE" !in permissions && sdk >= 28) throw SecurityException("FOREGROUND_SERVICE is missing")
            if (type != null && sdk < 34) throw IllegalArgumentException("type $type is unknown in API $sdk")
            if (sdk >= 34) {
                if (type != ServiceInfo.FOREGROUND_SERVICE_TYPE_HEALTH) throw IllegalArgumentException("type $type")
                if (attributes("service", "android:foregroundServiceType") != listOf("health")) throw IllegalArgumentException("the manifest lacks the type")
                if ("FOREGROUND_SERVICE_HEALTH" !in permissions) throw SecurityException("FOREGROUND_SERVICE_HEALTH is missing")
                if ("HIGH_SAMPLING_RATE_SENSORS" !in permissions) throw SecurityException("no permission for sensors")
            }
            if (sdk >= 31 && !isInUse) throw IllegalStateException("ForegroundServiceStartNotAllowedException")
            events += "foreground"
        }

        fun start(record: () -> Unit = {}): Int = begin({ startForeground(typeIn(sdk)) }, { record().also { events += "records" } }) {
            events += "ended"
            error = it
        }

        var error: Exception? = null
    }

    @Test
    fun `on every version it records while the app is in use, and else ends without an exception`() {
        for (sdk in 26..36) {
            val inUse = Android(sdk, isInUse = true, permissions)
            assertEquals(Service.START_NOT_STICKY, inUse.start())
            assertEquals(listOf("foreground", "records"), inUse.events, "API $sdk")
            val behind = Android(sdk, isInUse = false, permissions)
            assertEquals(Service.START_NOT_STICKY, behind.start())
            assertEquals(if (sdk >= 31) listOf("ended") else listOf("foreground", "records"), behind.events, "API $sdk")
        }
    }

    @Test
    fun `whatever Android or the phone refuses ends the service, and nothing is recorded`() {
        for (permission in listOf("FOREGROUND_SERVICE", "FOREGROUND_SERVICE_HEALTH", "HIGH_SAMPLING_RATE_SENSORS")) {
            val without = Android(36, isInUse = true, permissions - permission)
            without.start()
            assertIs<SecurityException>(without.error, permission)
            assertEquals(listOf("ended"), without.events)
        }
        for (thrown in listOf(ConfigException("no consent"), IllegalStateException("odd"), NullPointerException())) {
            val android = Android(36, isInUse = true, permissions)
            android.start { throw thrown }
            assertEquals(listOf("foreground", "ended"), android.events)
        }
    }
}
