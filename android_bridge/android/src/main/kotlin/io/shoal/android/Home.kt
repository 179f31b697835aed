package io.shoal.android

import android.content.Context
import io.shoal.core.BrokerAddress
import io.shoal.core.ConfigException
import java.io.File
import java.io.FileOutputStream
import java.security.MessageDigest
import java.security.SecureRandom
import java.util.Locale
import java.util.Properties

/**
 * The library's folder. It lies where Android's backup does not look: a device id, a session and private tensors restored on another phone
 * would make two phones out of one.
 */
internal class Home(private val root: File) {
    constructor(context: Context) : this(File(context.noBackupFilesDir, "shoal"))

    /**
     * What the phone's session needs over restarts: a folder for each fleet and broker, since a session, private tensors and the model of one
     * mean nothing to another.
     */
    fun state(settings: ShoalSettings): File {
        val named = "${settings.fleet}\n${BrokerAddress.parse(settings.broker)}".toByteArray()
        val hash = MessageDigest.getInstance("SHA-256").digest(named).take(8).joinToString("") { "%02x".format(Locale.ROOT, it) }
        return File(root, "state/${settings.fleet}-$hash")
    }

    /** Programs of the bundle in use. */
    val programs = File(root, "programs")

    /** What [SensorRecorder] wrote. */
    val recordings = File(root, "recordings")

    private val certificateFile = File(root, "certificate.pem")

    /** The certificates of the device's key, its own first; null before one was installed. */
    var certificates: String?
        get() = certificateFile.takeIf { it.exists() }?.readText()
        set(value) = replace(certificateFile, requireNotNull(value).toByteArray())

    /** @throws ConfigException the phone is not enrolled, or what is kept cannot be used */
    fun settings(): ShoalSettings {
        val kept = read(SETTINGS)
        if (kept.isEmpty) throw ConfigException("this phone is not enrolled: call Shoal.enrol first")
        return ShoalSettings.read(kept)
    }

    fun save(settings: ShoalSettings): Unit = synchronized(LOCK) { write(SETTINGS, settings.write()) }

    val enrolled: Boolean get() = File(root, SETTINGS).exists()

    /** The device's id: what the app gave, else a random one that stays. */
    fun deviceId(settings: ShoalSettings): String = synchronized(LOCK) {
        settings.deviceId?.let { return it }
        val kept = read(STATUS)
        kept.getProperty("deviceId")?.let { return it }
        val bytes = ByteArray(8).also(SecureRandom()::nextBytes)
        val made = "phone-" + bytes.joinToString("") { "%02x".format(it) }
        write(STATUS, kept.apply { setProperty("deviceId", made) })
        made
    }

    fun status(): ShoalStatus = read(STATUS).let { kept ->
        ShoalStatus(enrolled, kept.getProperty("lastJobAtMs")?.toLongOrNull(), kept.getProperty("lastJob").orEmpty())
    }

    /** Notes what came of a job; not of one that ends after the phone has left. */
    fun noteJob(nowMs: Long, text: String): Unit = changeStatus {
        setProperty("lastJobAtMs", nowMs.toString())
        setProperty("lastJob", text)
    }

    /** When jobs ran in the foreground. */
    var foregroundTimes: ForegroundTimes
        get() = ForegroundTimes.parse(read(STATUS).getProperty("foreground").orEmpty())
        set(value) = changeStatus { setProperty("foreground", value.toString()) }

    private fun changeStatus(change: Properties.() -> Unit): Unit = synchronized(LOCK) {
        if (enrolled) write(STATUS, read(STATUS).apply(change))
    }

    /**
     * Forgets settings, sessions and programs; recordings only where [recordings] says so. A job that is running loses its folder, and ends.
     */
    fun clear(recordings: Boolean): Unit = synchronized(LOCK) {
        File(root, SETTINGS).delete()
        for (file in root.listFiles().orEmpty()) if (recordings || file != this.recordings) file.deleteRecursively()
    }

    private fun read(name: String): Properties = Properties().also { kept ->
        val file = File(root, name)
        if (file.exists()) file.inputStream().use(kept::load)
    }

    private fun write(name: String, values: Properties) {
        val bytes = java.io.ByteArrayOutputStream().also { values.store(it, null) }.toByteArray()
        replace(File(root, name), bytes)
    }

    private fun replace(file: File, bytes: ByteArray) {
        root.mkdirs()
        val made = File(root, file.name + ".new")
        FileOutputStream(made).use {
            it.write(bytes)
            it.fd.sync()
        }
        if (!made.renameTo(file)) throw java.io.IOException("$file: cannot be replaced")
    }

    private companion object {
        const val SETTINGS = "settings.properties"
        const val STATUS = "status.properties"
        val LOCK = Any()
    }
}

/** How it went: whether this phone is enrolled, when a job last ran (Unix time in ms), and what came of it, in words for a log. */
public class ShoalStatus internal constructor(public val enrolled: Boolean, public val lastJobAtMs: Long?, public val lastJob: String)
