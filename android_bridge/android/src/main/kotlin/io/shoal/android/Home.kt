package io.shoal.android

import io.shoal.core.BrokerAddress
import io.shoal.core.ConfigException
import io.shoal.core.StorageException
import io.shoal.core.writeAtomically
import java.io.ByteArrayOutputStream
import java.io.File
import java.io.FileNotFoundException
import java.io.IOException
import java.nio.channels.FileChannel
import java.nio.channels.FileLock
import java.nio.file.StandardOpenOption
import java.security.MessageDigest
import java.security.SecureRandom
import java.util.Locale
import java.util.Properties

/**
 * Folder of a fleet. Android's backup does not include it: a device id, a session and private
 * tensors restored on another phone would make two phones out of one.
 *
 * @param path function that returns the folder's path. Android may create folders for it, so no
 *   thread of the app's asks for a file's path.
 */
internal class Home(private val path: () -> File) {
    constructor(folder: File) : this({ folder })

    /** Path of the folder. */
    val folder: File get() = path()
    private val root: File get() = path()

    /**
     * Return the folder of the phone's session and model, one for each fleet and broker, since they
     * mean nothing to another fleet or broker.
     */
    fun state(settings: ShoalSettings): File {
        // the service may name another broker later, for the same fleet and the same model
        val named = "${settings.fleet}\n${if (settings.service != null) "enrolled" else place(settings.broker)}".toByteArray()
        val hash = MessageDigest.getInstance("SHA-256").digest(named).take(8).joinToString("") { "%02x".format(Locale.ROOT, it) }
        return File(root, "state/${settings.fleet}-$hash")
    }

    /** Return scheme, host and port of a broker's address. */
    private fun place(broker: String): String = BrokerAddress.parse(broker).let { "${if (it.tls == null) "mqtt" else "mqtts"}://${it.host}:${it.port}" }

    /** Folder of the programs of the bundle in use. */
    val programs get() = File(root, "programs")

    /** Folder of the recordings of [SensorRecorder]. */
    val recordings get() = File(root, "recordings")

    /** File of the labels. */
    val labels get() = File(root, "labels.txt")

    /** Files of the phone's enrolment. */
    val enrolment = EnrolmentFolder(path)

    private val certificateFile get() = File(root, "certificate.pem")

    /** Certificates of the device's key, its own first; null before one was installed. */
    var certificates: String?
        get() = certificateFile.takeIf { it.exists() }?.readText()
        set(value) {
            root.mkdirs()
            writeAtomically(certificateFile, requireNotNull(value).toByteArray())
        }

    /**
     * Return the stored settings.
     *
     * @throws ConfigException there are none, or they cannot be used
     */
    fun settings(): ShoalSettings {
        val stored = read(SETTINGS)
        if (stored.isEmpty) throw ConfigException("fleet ${root.name}: this phone has no settings for it; call Shoal.fleet with settings first")
        return ShoalSettings.read(stored)
    }

    fun save(settings: ShoalSettings): Unit = synchronized(LOCK) { write(SETTINGS, settings.write()) }

    val hasSettings: Boolean get() = File(root, SETTINGS).exists()

    /**
     * Return the device's id: the app's, or a random one that stays.
     *
     * @throws StorageException it cannot be stored
     */
    fun deviceId(settings: ShoalSettings): String = synchronized(LOCK) {
        settings.deviceId?.let { return it }
        val status = read(STATUS)
        status.getProperty("deviceId")?.let { return it }
        val bytes = ByteArray(8).also(SecureRandom()::nextBytes)
        val id = "phone-" + bytes.joinToString("") { "%02x".format(it) }
        try {
            write(STATUS, status.apply { setProperty("deviceId", id) })
        } catch (error: IOException) {
            throw StorageException("fleet ${root.name}: the phone's id cannot be stored: $error", error)
        }
        id
    }

    /** State after the last job. */
    val lastState: FleetState get() = FleetState.parse(read(STATUS).getProperty("state").orEmpty())

    /** Store the state after a job, unless the phone has left the fleet since. */
    fun noteState(state: FleetState): Unit = changeStatus { setProperty("state", state.write()) }

    /** Name of the phone's key in the Keystore. */
    val keyAlias: String get() = "io.shoal.device.${root.name}"

    /** Times at which jobs ran in the foreground. */
    var foregroundTimes: ForegroundTimes
        get() = ForegroundTimes.parse(read(STATUS).getProperty("foreground").orEmpty())
        set(value) = changeStatus { setProperty("foreground", value.toString()) }

    private fun changeStatus(change: Properties.() -> Unit): Unit = synchronized(LOCK) {
        if (hasSettings) write(STATUS, read(STATUS).apply(change))
    }

    /**
     * Hold the folder for this process until it ends. A file system without locks refuses nobody.
     *
     * @throws ConfigException another process of the app holds it
     */
    fun claim(): Unit = synchronized(LOCK) {
        val file = File(root, CLAIM).absoluteFile
        if (file in CLAIMS) return
        root.mkdirs()
        val lock = try {
            FileChannel.open(file.toPath(), StandardOpenOption.CREATE, StandardOpenOption.WRITE).run { tryLock() ?: null.also { close() } }
        } catch (_: IOException) {
            return
        }
        CLAIMS += file to (lock ?: throw ConfigException("fleet ${root.name}: another process of this app uses it; use Shoal in one process alone"))
    }

    /**
     * Delete settings, sessions and programs, and recordings only if [recordings] is true. No job
     * may run: after the phone has joined again, it would write into the new folder.
     */
    fun clear(recordings: Boolean): Unit = synchronized(LOCK) {
        File(root, SETTINGS).delete()
        for (file in root.listFiles().orEmpty()) if (file.name != CLAIM && (recordings || (file != this.recordings && file != labels))) file.deleteRecursively()
    }

    private fun read(name: String): Properties = propertiesIn(File(root, name))

    private fun write(name: String, values: Properties) = writeProperties(File(root, name), values)

    companion object {
        /** Return the folder of a fleet below [root]. */
        fun of(root: File, fleet: String): Home = Home(File(root, "fleets/$fleet"))

        private const val SETTINGS = "settings.properties"
        private const val STATUS = "status.properties"
        private const val CLAIM = "process.lock"

        /** Locks of this process, which end with it. */
        private val CLAIMS = HashMap<File, FileLock>()

        /** Lock held while a file of a fleet's folder is written. */
        val LOCK = Any()
    }
}

/** Return the content of a file of properties, empty if there is no file. */
internal fun propertiesIn(file: File): Properties = Properties().also {
    try {
        file.inputStream().use(it::load)
    } catch (_: FileNotFoundException) { // it may have been deleted a moment ago
    }
}

/** Write a file of properties. */
internal fun writeProperties(file: File, values: Properties) {
    file.parentFile.mkdirs()
    writeAtomically(file, ByteArrayOutputStream().also { values.store(it, null) }.toByteArray())
}
