package io.shoal.android

import io.shoal.core.BrokerAddress
import io.shoal.core.ConfigException
import io.shoal.core.FolderStorage
import io.shoal.core.Log
import io.shoal.core.Owner
import io.shoal.core.Predictor
import io.shoal.core.ShoalException
import io.shoal.core.Tensor
import java.io.IOException
import java.util.concurrent.Executor
import java.util.concurrent.locks.ReentrantLock

/** A fleet that this phone takes part in. Its functions may be called from any thread; which of them take time says each. */
public class Fleet internal constructor(
    /** The fleet's name. */
    public val name: String,
    internal val home: Home,
    private val platform: Platform,
    private val log: Log = LogcatLog,
) {
    /** Held while a job runs, and while what the phone has learned is erased. */
    internal val running = ReentrantLock()
    internal val states = States(home.lastState)
    private val predicting = Any()
    private var predictor: Predictor? = null
    private var given: ShoalSettings? = null

    /** Whether the phone's owner agrees to take part. */
    public val consent: Consent = Consent(home.folder, platform.disk, ::join, platform::cancel, ::erase)

    /** What the phone does for this fleet. */
    public val state: FleetState
        get() = if (consent.granted) states.now else FleetState.Blocked(FleetState.Blocked.Reason.CONSENT, "no consent")

    /**
     * The model that answers, or null before there is one, and never again. Reads a small file.
     *
     * @throws ConfigException it is that of another phone
     */
    public val model: ModelInfo?
        get() = storage().current()?.let { ModelInfo(it.model, it.run, it.release) }

    /**
     * What was measured of the model that was offered last; null before there was one. Reads a small file.
     *
     * @throws ConfigException it is that of another phone
     */
    public val metrics: ModelMetrics?
        get() = storage().session().offer?.let { ModelMetrics(Evaluation.of(it.before), Evaluation.of(it.evaluated)) }

    /** The phone's id in the fleet. */
    public val deviceId: String get() = home.deviceId(settings)

    /** @throws ConfigException the fleet was given none, or what is kept cannot be used */
    internal val settings: ShoalSettings
        get() = synchronized(this) { given ?: home.settings().also { given = it } }

    /** Tells [listener], by [executor], of the state as it is now and of each that follows. */
    public fun addListener(listener: FleetListener, executor: Executor): Unit = states.add(listener, executor)

    /** Tells it no more. */
    public fun removeListener(listener: FleetListener): Unit = states.remove(listener)

    /** One job as soon as the constraints hold: there is one chain of jobs, and if one is waiting or running, that is the one. */
    public fun trainSoon() {
        if (consent.granted) platform.scheduleOnce(settings)
    }

    /**
     * Class probabilities of examples [x] (n, channels, time), or what the model's task answers in their place, by the model in use. It needs no connection and no consent, and goes on while
     * the phone trains: it waits for one batch at most. Not for the main thread.
     *
     * @throws ConfigException there is no model yet, or it is damaged, or it is that of another phone
     * @throws io.shoal.core.DataException examples of another shape
     * @throws ShoalException the model cannot answer
     */
    @Throws(ShoalException::class)
    public fun predict(x: Tensor): Probabilities = synchronized(predicting) {
        val opened = predictor ?: Predictor(storage(), platform.loader(home.programs), settings.trusted).also { predictor = it }
        val answer = opened.predict(x)
        Probabilities(opened.classes, answer, opened.task)
    }

    /**
     * Records the phone's sensors for this fleet.
     *
     * @param maxBytes the oldest recordings are deleted beyond this
     * @throws ConfigException the phone lacks one of the sensors, or the rate needs a permission of its own (above 200 Hz)
     */
    @JvmOverloads
    @Throws(ConfigException::class)
    public fun recorder(spec: WindowSpec, maxBytes: Long = 64L * 1024 * 1024): SensorRecorder = platform.recorder(this, spec, maxBytes)

    /**
     * A certificate signing request (PKCS#10, PEM) for the phone's key, for the authority of the fleet's broker. The key is made in the Android
     * Keystore the first time. Not for the main thread.
     */
    @Throws(ConfigException::class)
    public fun certificateRequest(): String = platform.key(home.keyAlias).request(deviceId)

    /**
     * Keeps the certificates (PEM, the phone's own first) that the authority made from [certificateRequest]; jobs use them from now on. Not for
     * the main thread.
     *
     * @throws ConfigException not certificates, or not for this phone's key
     */
    @Throws(ConfigException::class)
    public fun installCertificate(pem: String) {
        platform.key(home.keyAlias).install(pem)
        home.certificates = pem
    }

    /**
     * Takes part no more: consent, jobs, session, private tensors, models and the phone's key are deleted; recordings only if [recordings]. A
     * job that is running ends. Done by a thread of the library's.
     */
    @JvmOverloads
    public fun leave(recordings: Boolean = false) {
        consent.withdraw()
        platform.disk.execute {
            val alias = home.keyAlias
            synchronized(predicting) {
                predictor?.close()
                predictor = null
            }
            synchronized(this) { given = null }
            home.clear(recordings)
            platform.key(alias).delete()
            states.set(FleetState.Idle)
        }
    }

    internal fun configure(settings: ShoalSettings) {
        BrokerAddress.parse(settings.broker)
        synchronized(this) { given = settings }
        platform.disk.execute {
            synchronized(predicting) {
                predictor?.close() // it may trust other keys now
                predictor = null
            }
            noting { home.save(settings) }
            if (consent.granted) platform.schedule(settings)
        }
    }

    /**
     * What its session and its model are kept in.
     *
     * @throws ConfigException it is that of another phone, as a backup brings it
     */
    internal fun storage(): FolderStorage = FolderStorage(home.state(settings), log, Owner(deviceId, settings.fleet))

    /** @throws ConfigException not a broker's address, or its authority is no certificate */
    internal fun address(): BrokerAddress {
        val certified = home.certificates != null
        val caPem = settings.brokerCaPem
        val tls = if (caPem == null && !certified) null else platform.key(home.keyAlias).tls(caPem, certified)
        return BrokerAddress.parse(settings.broker, tls)
    }

    internal fun loader() = platform.loader(home.programs)

    internal val disk: Executor get() = platform.disk

    private fun join() {
        noting { platform.schedule(settings) }
    }

    /** Deletes recordings and what the phone has learned from them, once no job runs; whether that could be done. */
    private fun erase(): Boolean {
        running.lock()
        try {
            return noting {
                home.recordings.deleteRecursively()
                FolderStorage(home.state(settings), log).erase() // also where it is another phone's
            }
        } finally {
            running.unlock()
        }
    }

    /** Runs what writes files on a thread that nobody waits for; whether it could be done. */
    private fun noting(write: () -> Unit): Boolean = try {
        write()
        true
    } catch (error: IOException) {
        failed(error)
    } catch (error: ConfigException) {
        failed(error)
    }

    private fun failed(error: Exception): Boolean {
        log.write(Log.Level.ERROR, "fleet $name: $error")
        states.set(FleetState.Blocked(FleetState.Blocked.Reason.SETTINGS, error.message.orEmpty()))
        return false
    }
}
