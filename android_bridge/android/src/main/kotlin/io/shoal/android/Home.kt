package io.shoal.android

import io.shoal.core.BrokerAddress
import io.shoal.core.ConfigException
import java.io.File
import java.io.FileNotFoundException
import java.io.FileOutputStream
import java.io.IOException
import java.security.MessageDigest
import java.security.SecureRandom
import java.util.Locale
import java.util.Properties

/**
 * A fleet's folder. It lies where Android's backup does not look: a device id, a session and private tensors restored on another phone
 * would make two phones out of one.
 */
internal class Home(private val root: File) {
    /** Where all of it lies. */
    val folder: File get() = root

    /**
     * What the phone's session needs over restarts: a folder for each fleet and broker, since a session, private tensors and the model of one
     * mean nothing to another.
     */
    fun state(settings: ShoalSettings): File {
        // the service may give another broker later: it is the same fleet, and the same model
        val named = "${settings.fleet}\n${if (settings.service != null) "enrolled" else BrokerAddress.parse(settings.broker)}".toByteArray()
        val hash = MessageDigest.getInstance("SHA-256").digest(named).take(8).joinToString("") { "%02x".format(Locale.ROOT, it) }
        return File(root, "state/${settings.fleet}-$hash")
    }

    /** Programs of the bundle in use. */
    val programs = File(root, "programs")

    /** What [SensorRecorder] wrote. */
    val recordings = File(root, "recordings")

    /** What was being done when. */
    val labels = File(root, "labels.txt")

    /** What the phone was given when it enrolled. */
    val enrolment = EnrolmentFolder(root)

    private val certificateFile = File(root, "certificate.pem")

    /** The certificates of the device's key, its own first; null before one was installed. */
    var certificates: String?
        get() = certificateFile.takeIf { it.exists() }?.readText()
        set(value) = replace(certificateFile, requireNotNull(value).toByteArray())

    /** @throws ConfigException the phone is not enrolled, or what is kept cannot be used */
    fun settings(): ShoalSettings {
        val kept = read(SETTINGS)
        if (kept.isEmpty) throw ConfigException("fleet ${root.name}: this phone has no settings of it: call Shoal.fleet with settings first")
        return ShoalSettings.read(kept)
    }

    fun save(settings: ShoalSettings): Unit = synchronized(LOCK) { write(SETTINGS, settings.write()) }

    val enrolled: Boolean get() = File(root, SETTINGS).exists()

    /**
     * The device's id: what the app gave, else a random one that stays.
     *
     * @throws ConfigException it cannot be stored
     */
    fun deviceId(settings: ShoalSettings): String = synchronized(LOCK) {
        settings.deviceId?.let { return it }
        val kept = read(STATUS)
        kept.getProperty("deviceId")?.let { return it }
        val bytes = ByteArray(8).also(SecureRandom()::nextBytes)
        val made = "phone-" + bytes.joinToString("") { "%02x".format(it) }
        try {
            write(STATUS, kept.apply { setProperty("deviceId", made) })
        } catch (error: IOException) {
            throw ConfigException("fleet ${root.name}: the phone's id cannot be stored: $error", error)
        }
        made
    }

    /** The state that the last job left. */
    val lastState: FleetState get() = FleetState.parse(read(STATUS).getProperty("state").orEmpty())

    /** Notes what came of a job; not of one that ends after the phone has left. */
    fun noteState(state: FleetState): Unit = changeStatus { setProperty("state", state.write()) }

    /** The name of the phone's key in the Keystore. */
    val keyAlias: String get() = read(STATUS).getProperty("keyAlias") ?: "io.shoal.device.${root.name}"

    /** When jobs ran in the foreground. */
    var foregroundTimes: ForegroundTimes
        get() = ForegroundTimes.parse(read(STATUS).getProperty("foreground").orEmpty())
        set(value) = changeStatus { setProperty("foreground", value.toString()) }

    private fun changeStatus(change: Properties.() -> Unit): Unit = synchronized(LOCK) {
        if (enrolled) write(STATUS, read(STATUS).apply(change))
    }

    /**
     * Forgets settings, sessions and programs; recordings only where [recordings] says so. No job may run: after the phone has joined again
     * it would write into the new folder.
     */
    fun clear(recordings: Boolean): Unit = synchronized(LOCK) {
        File(root, SETTINGS).delete()
        for (file in root.listFiles().orEmpty()) if (recordings || (file != this.recordings && file != labels)) file.deleteRecursively()
    }

    private fun read(name: String): Properties = propertiesIn(File(root, name))

    private fun write(name: String, values: Properties) = writeProperties(File(root, name), values)

    companion object {
        /**
         * The folder of a fleet below [root]. What lies in [root] itself from the time before an app could have several fleets is moved there,
         * the settings last: a move that was interrupted goes on.
         */
        fun of(root: File, fleet: String): Home = synchronized(LOCK) {
            val folder = File(root, "fleets/$fleet")
            val before = Home(root)
            if (before.enrolled && before.read(SETTINGS).getProperty("fleet") == fleet) {
                before.changeStatus { setProperty("keyAlias", "io.shoal.device") }
                folder.mkdirs()
                val names = listOf("state", "programs", "recordings", "certificate.pem", STATUS, SETTINGS)
                for (file in names.map { File(root, it) }.filter(File::exists)) {
                    if (!file.renameTo(File(folder, file.name))) throw IOException("$file: cannot be moved to $folder")
                }
            }
            Home(folder)
        }

        private const val SETTINGS = "settings.properties"
        private const val STATUS = "status.properties"

        /** Held while a file of a fleet's folder is written. */
        val LOCK = Any()
    }
}

/** What a file of properties says; nothing where there is none. */
internal fun propertiesIn(file: File): Properties = Properties().also {
    try {
        file.inputStream().use(it::load)
    } catch (_: FileNotFoundException) { // also one that was deleted a moment ago
    }
}

/** Writes such a file, as [replace] does. */
internal fun writeProperties(file: File, values: Properties): Unit =
    replace(file, java.io.ByteArrayOutputStream().also { values.store(it, null) }.toByteArray())

/** Writes a file so that after a crash it is the old one or the new one, never a part. */
internal fun replace(file: File, bytes: ByteArray) {
    file.parentFile.mkdirs()
    val made = File(file.path + ".new")
    FileOutputStream(made).use {
        it.write(bytes)
        it.fd.sync()
    }
    if (!made.renameTo(file)) throw IOException("$file: cannot be replaced")
}
