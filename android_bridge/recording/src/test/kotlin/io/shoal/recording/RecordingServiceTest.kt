package io.shoal.recording

import android.app.NotificationManager
import android.app.Service
import android.content.ContextWrapper
import android.content.pm.ApplicationInfo
import android.content.pm.ServiceInfo
import android.hardware.Sensor
import android.hardware.SensorManager
import io.shoal.android.Fleet
import io.shoal.android.FleetBuilder
import io.shoal.android.Home
import io.shoal.android.Platform
import io.shoal.android.RecordedSensor
import io.shoal.android.RecordedWindows
import io.shoal.android.RecordingOptions
import io.shoal.android.SensorRecorder
import io.shoal.android.WindowSource
import io.shoal.android.WindowSpec
import io.shoal.core.ConfigException
import io.shoal.core.Log
import org.junit.jupiter.api.io.TempDir
import java.io.File
import java.lang.reflect.Proxy
import java.util.concurrent.Executor
import javax.xml.parsers.DocumentBuilderFactory
import kotlin.test.Test
import kotlin.test.assertContains
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertFalse
import kotlin.test.assertIs
import kotlin.test.assertTrue
import kotlin.test.fail

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

    @TempDir
    lateinit var root: File

    class Walks : RecordedWindows(WindowSpec(listOf("walking"), sensors = listOf(RecordedSensor.ACCELEROMETER)))

    class Beats : RecordedWindows(WindowSpec(listOf("walking"), sensors = listOf(RecordedSensor.HEART_RATE)))

    /** Return a fleet of a phone with an accelerometer, whose owner gave no permission. */
    private fun fleet(name: String, windows: Class<out WindowSource>): Fleet {
        val quiet = Proxy.newProxyInstance(javaClass.classLoader, arrayOf(Platform::class.java)) { _, method, _ ->
            when (method.name) {
                "getDisk", "getReader" -> Executor(Runnable::run)
                "isUnlocked" -> true
                else -> null
            }
        } as Platform
        val platform = object : Platform by quiet {
            override fun recorder(fleet: Fleet, spec: WindowSpec, options: RecordingOptions) = SensorRecorder(allocated(Phone::class.java), fleet, spec, options)
        }
        return Fleet(name, Home.of(root, name), platform, Log.SILENT).also {
            it.configure(FleetBuilder(name).broker("mqtt://b").windows(windows).allowInsecure().build())
        }
    }

    class Phone : ContextWrapper(null) {
        override fun getSystemService(name: String): Any = Sensors()

        override fun checkSelfPermission(permission: String): Int = -1

        override fun getApplicationInfo(): ApplicationInfo = allocated(ApplicationInfo::class.java)
    }

    private class Sensors : SensorManager() {
        override fun getDefaultSensor(type: Int): Sensor? = if (type == Sensor.TYPE_ACCELEROMETER) allocated(Sensor::class.java) else null

        override fun getDefaultSensor(type: Int, wakeUp: Boolean): Sensor? = null
    }

    @Test
    fun `what keeps a recording from beginning is thrown to who starts it, and nothing starts`() {
        fun refused(fleet: Fleet, label: String?): String {
            val error = assertFailsWith<ConfigException> { RecordingService.request(fleet, label) { fail("it starts") } }
            assertFalse(RecordingService.isRecording(fleet))
            return error.message!!
        }
        val (walks, beats) = Pair(fleet("walks", Walks::class.java), fleet("beats", Beats::class.java))
        assertContains(refused(walks, "walking"), "consent.grant")
        for (fleet in listOf(walks, beats)) fleet.consent.grant("terms-1")
        assertContains(refused(walks, "flying"), "label must be one of [walking], got 'flying'")
        assertContains(refused(beats, "walking"), "android.permission.BODY_SENSORS")
        assertFailsWith<IllegalStateException> { RecordingService.request(walks, null) { throw IllegalStateException("in the background") } }
        assertFalse(RecordingService.isRecording(walks))
        RecordingService.request(walks, "walking") { assertTrue(RecordingService.isRecording(walks), "it may fail at once") }
        assertTrue(RecordingService.isRecording(walks))
        assertFalse(RecordingService.isRecording(beats))
    }

    /**
     * Android's rules for orders to a service, which its main thread carries out one after the other:
     * one that is stopped before it has asked for the foreground ends the app, and an app in the
     * background gives orders only to a service that runs in the foreground.
     */
    private class Orders(private val isInUse: Boolean) {
        private val waiting = ArrayDeque<Pair<Int, String?>>()
        private var latest = 0
        private var owesForeground = false
        private var isForeground = false
        var isCrashed = false
        var recorded: String? = null

        fun start(label: String) {
            owesForeground = !isForeground
            waiting += ++latest to label
        }

        fun stop() = RecordingService.halt(
            {
                if (!isInUse && !isForeground) throw IllegalStateException("Not allowed to start service")
                waiting += ++latest to null
            },
            ::end,
        )

        fun carryOut() {
            val (order, label) = waiting.removeFirstOrNull() ?: return
            if (label == null) {
                recorded = null
                if (order == latest) end()
            } else {
                begin({ isForeground = true }, { recorded = label }) { throw it }
                owesForeground = false
            }
        }

        private fun end() {
            isCrashed = isCrashed || owesForeground
            waiting.clear()
            isForeground = false
            recorded = null
        }

        fun carryOutAll() {
            while (waiting.isNotEmpty()) carryOut()
        }
    }

    @Test
    fun `starts and stops in any order and haste harm nothing, and the last one decides`() {
        val acts = listOf<(Orders) -> Unit>({ it.start("walking") }, { it.start("stairs") }, { it.stop() }, { it.carryOut() })
        for (number in 0 until 4096) {
            val steps = List(6) { (number shr (2 * it)) and 3 }
            val android = Orders(isInUse = true)
            for (step in steps) acts[step](android)
            android.carryOutAll()
            assertFalse(android.isCrashed, "$steps")
            assertEquals(listOf("walking", "stairs", null).getOrNull(steps.lastOrNull { it < 3 } ?: 2), android.recorded, "$steps")
        }
        Orders(isInUse = false).stop() // nothing runs, and Android refuses the order: not the app's concern
    }

    @Test
    fun `no question is used up that Android would not show`() {
        val taken = ArrayList<String>()
        fun take(enabled: Boolean, importance: Int?) = LabelPrompt.ifShown(enabled, importance) { "question".also(taken::add) }
        assertEquals(listOf(null, null, null), listOf(take(false, null), take(false, 3), take(true, NotificationManager.IMPORTANCE_NONE)))
        assertEquals(emptyList(), taken)
        assertEquals(listOf<String?>("question", "question"), listOf(take(true, null), take(true, NotificationManager.IMPORTANCE_LOW)))
    }

    private companion object {
        /** Return an object of one of Android's classes, whose constructors throw here. */
        fun <T> allocated(type: Class<T>): T {
            val unsafe = Class.forName("sun.misc.Unsafe").getDeclaredField("theUnsafe").apply { isAccessible = true }.get(null)
            return type.cast(unsafe.javaClass.getMethod("allocateInstance", Class::class.java).invoke(unsafe, type))
        }
    }
}
