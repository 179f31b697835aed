package io.shoal.android

import io.shoal.core.BrokerAddress
import io.shoal.core.ConfigException
import io.shoal.core.Current
import io.shoal.core.FolderStorage
import io.shoal.core.Log
import io.shoal.core.Owner
import io.shoal.core.Packaged
import io.shoal.core.Predictor
import io.shoal.core.RoundMeasured
import io.shoal.core.Route
import io.shoal.core.ShoalException
import io.shoal.core.Storage
import io.shoal.core.StorageWatcher
import io.shoal.core.Tensor
import io.shoal.core.WatchedStorage
import io.shoal.core.Withdrawal
import io.shoal.core.unless
import java.io.File
import java.io.IOException
import java.util.Optional
import java.util.concurrent.Executor
import java.util.concurrent.locks.ReentrantLock
import kotlin.concurrent.withLock

/** A fleet that this phone takes part in. Its functions may be called from any thread; which of them take time says each. */
public class Fleet internal constructor(
    /** The fleet's name. */
    public val name: String,
    internal val home: Home,
    private val platform: Platform,
    private val log: Log = LogcatLog,
) {
    /** Held while a job runs, and while its folder is erased or deleted. Its holder must not wait for [disk], whose thread waits for the lock. */
    internal val running = ReentrantLock()
    internal val states = States(home.lastState, ::shown)
    private val models = Observers<Unit>()
    private val rounds = Observers<RoundMetrics>()
    private val watcher = object : StorageWatcher {
        override fun onModel(current: Current) = models.tell(Unit)

        override fun onRound(measured: RoundMeasured) = rounds.tell(RoundMetrics(measured))
    }
    private val predicting = Any()

    /** Held while the app's model is stored, and while the state folder is erased or deleted. Taken after [running] and [predicting]. */
    private val storing = Any()
    private var predictor: Predictor? = null
    private var given: ShoalSettings? = null
    private var opened: Opened? = null

    /** A storage, and whose it was opened as. */
    private class Opened(val folder: File, val owner: Owner?, val storage: WatchedStorage)

    /** Whether the phone's owner agrees to take part. */
    public val consent: Consent = Consent(home.folder, platform.disk, ::join, ::withdrawn, ::erase)

    /** What was being done when, of the fleet's recordings. */
    public val labels: Labels = Labels(home.labels, platform.disk, { consent.isGranted }, log)

    private val enroller =
        Enroller(name, home.enrolment, platform::desk, { platform.key(home.keyAlias) }, { consent.isGranted }, log, platform::attest)

    /** What the phone does for this fleet. */
    public val state: FleetState get() = shown(states.now)

    /**
     * The model that answers, or null before there is one, and never again. Reads files, and the first time may verify the one that the app
     * brings along: on the main thread use [addModelListener].
     *
     * @throws ConfigException it is that of another phone, or the one that the app brings along cannot be used
     */
    @get:Throws(ConfigException::class)
    public val model: ModelInfo?
        get() = held().current()?.let(ModelInfo.Companion::of)

    /**
     * What was measured of the model that was offered last; null before there was one. Reads a small file.
     *
     * @throws ConfigException it is that of another phone
     */
    @get:Throws(ConfigException::class)
    public val modelMetrics: ModelMetrics?
        get() = storage().session().offer?.let { ModelMetrics(Evaluation.of(it.before), Evaluation.of(it.evaluated)) }

    /**
     * The phone's id in the fleet; empty before the phone is enrolled, if the service chooses it.
     *
     * @throws ConfigException the phone has left, or the kept settings cannot be used
     */
    @get:Throws(ConfigException::class)
    public val deviceId: String
        get() = settings.let { if (it.service != null) it.deviceId.orEmpty() else home.deviceId(it) }

    /**
     * The app's, with what the service gave when the phone enrolled.
     *
     * @throws ConfigException the fleet was given none, or what is kept cannot be used
     */
    internal val settings: ShoalSettings
        get() = synchronized(this) { given ?: whole(home.settings()).also { given = it } }

    private fun whole(own: ShoalSettings): ShoalSettings =
        (if (own.service == null) null else home.enrolment.enrolled)?.let(own::with) ?: own

    private fun shown(state: FleetState): FleetState =
        if (consent.isGranted) state else FleetState.Blocked(FleetState.Blocked.Reason.CONSENT, "no consent")

    /** Tells [listener], by [executor], of the state as it is now and of each that follows. */
    public fun addListener(listener: FleetListener, executor: Executor): Unit = states.add(listener, executor)

    /** Tells it no more. */
    public fun removeListener(listener: FleetListener): Unit = states.remove(listener)

    /** Tells [listener], by [executor], of the model that answers, once that was read, and of each that follows. */
    public fun addModelListener(listener: ModelListener, executor: Executor) {
        models.add(listener, executor, null) { known()?.let(listener::onModel) }
        platform.disk.execute { if (known() != null) models.tell(Unit, listener) }
    }

    /** What is in use as far as that can be read: a listener is told of nothing else. */
    private fun known(): ModelInfo? = try {
        storage().current()?.let(ModelInfo.Companion::of)
    } catch (_: ConfigException) {
        null
    }

    /** Tells it no more. */
    public fun removeModelListener(listener: ModelListener): Unit = models.remove(listener)

    /** Tells [listener], by [executor], of each round that the phone carries out from now on. */
    public fun addRoundListener(listener: RoundListener, executor: Executor): Unit = rounds.add(listener, executor, null, listener::onRound)

    /** Tells it no more. */
    public fun removeRoundListener(listener: RoundListener): Unit = rounds.remove(listener)

    /**
     * One job as soon as the constraints hold: there is one chain of jobs, and if one is waiting or running, that is the one. Without
     * consent nothing is planned.
     *
     * @throws ConfigException the phone has left
     */
    @Throws(ConfigException::class)
    public fun trainSoon() {
        if (consent.isGranted) platform.scheduleOnce(settings)
    }

    /**
     * Class probabilities of examples [x] (n, channels, time), or what the model's task answers in their place, by the model in use. It
     * needs no connection and no consent, and goes on while the phone trains, on a thread of its own. Not for the main thread: the first verifies the bundle.
     *
     * @throws ConfigException there is no model yet, or it is damaged, or it is that of another phone, or the app's own cannot be used
     * @throws io.shoal.core.DataException examples of another shape
     * @throws ShoalException the model cannot answer
     */
    @Throws(ShoalException::class)
    public fun predict(x: Tensor): Probabilities = synchronized(predicting) {
        val opened = predictor ?: Predictor(held(), platform.answering(home.programs), settings.trusted).also { predictor = it }
        val answer = opened.predict(x)
        Probabilities(opened.classes, answer, opened.task)
    }

    /**
     * Records the phone's sensors for this fleet.
     *
     * @param spec which sensors; null: those of the fleet's [RecordedWindows]
     * @throws ConfigException the phone lacks one of the sensors, the app lacks a permission, or the fleet's windows are no [RecordedWindows]
     */
    @JvmOverloads
    @Throws(ConfigException::class)
    public fun recorder(spec: WindowSpec? = null, options: RecordingOptions = RecordingOptions()): SensorRecorder =
        platform.recorder(this, spec ?: ownSpec(), options)

    private fun ownSpec(): WindowSpec = (settings.source() as? RecordedWindows)?.spec
        ?: throw ConfigException("fleet $name: ${settings.windows.name} extends no RecordedWindows: say which sensors are recorded")

    /**
     * A certificate signing request (PKCS#10, PEM) for the phone's key, for the authority of the fleet's broker. The key is made in the Android
     * Keystore the first time. Not for the main thread.
     *
     * @throws ConfigException the phone has left, or the Keystore fails
     */
    @Throws(ConfigException::class)
    public fun certificateRequest(): String = withKey { it.request(deviceId) }

    /**
     * Keeps the certificates (PEM, the phone's own first) that the authority made from [certificateRequest]; jobs use them from now on. Not for
     * the main thread.
     *
     * @throws ConfigException not certificates, or not for this phone's key; or the Keystore fails, or the disk is full
     */
    @Throws(ConfigException::class)
    public fun installCertificate(pem: String) {
        withKey {
            it.install(pem)
            home.certificates = pem
        }
    }

    private fun <T> withKey(alias: String? = null, act: (DeviceKey) -> T): T = try {
        act(platform.key(alias ?: home.keyAlias))
    } catch (error: ConfigException) {
        throw error
    } catch (error: Exception) { // the Keystore throws what it likes
        throw ConfigException("fleet $name: the phone's key: $error", error)
    }

    /**
     * Takes part no more, and forgets whom it would have to tell: an aggregator that is to know is told by [Consent.withdraw] before.
     * A running job ends; then consent, jobs, session, private tensors, models and the phone's key are deleted, and recordings only with
     * [eraseRecordings]. Done by a thread of the library's.
     */
    @JvmOverloads
    public fun leave(eraseRecordings: Boolean = false) {
        consent.withdraw()
        platform.disk.execute {
            running.withLock {
                val alias = home.keyAlias
                synchronized(storing) {
                    synchronized(this) { // nobody opens the state folder while it is being deleted
                        home.clear(eraseRecordings)
                        given = null
                        opened = null
                    }
                }
                closePredictor()
                noting { withKey(alias, DeviceKey::delete) }
            }
            states.set(FleetState.Idle)
        }
    }

    /** Takes these settings in place of earlier ones; [token] is what the phone is to enrol with. */
    internal fun configure(settings: ShoalSettings, token: String? = null) {
        if (settings.service == null) BrokerAddress.parse(settings.broker)
        synchronized(this) { given = whole(settings) }
        platform.disk.execute {
            closePredictor() // it may trust other keys now
            noting {
                home.save(settings)
                token?.let(home.enrolment::ask)
                plan()
                bringModel()
            }
        }
    }

    /**
     * Enrols the phone, or renews its certificate, if the app's settings say that and it is to be done now; null if a job can go on. It
     * blocks, and throws nothing.
     */
    internal fun enrol(): FleetState? {
        val state = try {
            val own = home.settings()
            if (own.service == null) return null
            enroller.advance(own) ?: return null.also { if (settings != whole(own)) enrolled(own) }
        } catch (error: IOException) { // the disk is full, for instance
            log.write(Log.Level.WARNING, "fleet $name: $error")
            FleetState.Waiting(FleetState.Waiting.Why.STORAGE)
        } catch (error: ConfigException) {
            FleetState.Blocked(FleetState.Blocked.Reason.SETTINGS, error.message.orEmpty())
        } catch (error: Exception) { // the Keystore throws what it likes
            FleetState.Blocked(FleetState.Blocked.Reason.FAILED, error.toString())
        }
        states.set(state)
        noting { home.noteState(state) }
        return state
    }

    /** The same for a job, which does not wait for it once [stop] says that it is to end. */
    internal fun enrol(stop: () -> Boolean): FleetState? {
        val done = unless(stop) { Optional.ofNullable(enrol()) } ?: return FleetState.Waiting(FleetState.Waiting.Why.JOB)
        return done.orElse(null)
    }

    private fun enrolled(own: ShoalSettings) {
        synchronized(this) { given = whole(own) }
        closePredictor() // it may trust other keys now
        states.set(FleetState.Idle)
        noting { home.noteState(FleetState.Idle) }
    }

    /**
     * Has the model that the app brings along answer, unless one of the fleet does. A job does this before it begins.
     *
     * @throws ConfigException it cannot be used
     */
    internal fun bringModel() {
        val assets = settings.packaged ?: return
        synchronized(storing) {
            val storage = storage()
            val held = storage.current()
            if (held != null && held.run != Packaged.RUN) return
            try {
                Packaged.install(storage, platform.asset(assets.bundle), assets.weights?.let(platform::asset), settings.trusted)
            } catch (error: ConfigException) {
                throw error
            } catch (error: ShoalException) {
                throw ConfigException("model ${assets.bundle}: ${error.message}", error)
            }
        }
    }

    /** [storage], with a model in it if there can be one. */
    private fun held(): Storage = try {
        storage().also { if (it.current() == null) bringModel() }
    } catch (error: IOException) {
        throw ConfigException("fleet $name: the model that the app brings along cannot be stored: $error", error)
    }

    private fun closePredictor(): Unit = synchronized(predicting) {
        predictor?.close()
        predictor = null
    }

    /**
     * What its session and its model are kept in.
     *
     * @throws ConfigException it is that of another phone, as a backup brings it
     */
    internal fun storage(): Storage = synchronized(this) {
        val (folder, owner) = Pair(home.state(settings), owner())
        val open = opened?.takeIf { it.folder == folder && it.owner == owner }
            ?: Opened(folder, owner, WatchedStorage(FolderStorage(folder, log, owner), watcher)).also { opened = it }
        open.storage
    }

    /** Null before the service has said who this phone is. */
    private fun owner(): Owner? = deviceId.takeIf { it.isNotEmpty() }?.let { Owner(it, settings.fleet) }

    /** @throws ConfigException not a broker's address, or its authority is no certificate */
    internal fun address(route: Route = Route.System): BrokerAddress {
        val certified = settings.service != null || home.certificates != null
        val caPem = settings.brokerCaPem
        val tls = if (caPem == null && !certified) null else platform.key(home.keyAlias).tls(caPem, certified)
        return BrokerAddress.parse(settings.broker, tls, route)
    }

    internal fun loader() = platform.loader(home.programs)

    internal val disk: Executor get() = platform.disk

    private fun join() {
        states.refresh()
        noting { plan() }
    }

    private fun withdrawn() {
        states.refresh()
        platform.cancel()
        if (!consent.isGranted && !consent.isWithdrawalConfirmed) platform.scheduleWithdrawal()
    }

    /**
     * Tells the aggregator of a withdrawal, once no job runs; whether nothing is left to be told. It blocks.
     *
     * @throws io.shoal.core.LinkException the broker cannot be reached
     * @throws ConfigException the phone has left
     */
    internal fun tellWithdrawal(stop: () -> Boolean): Boolean {
        running.lock()
        try {
            if (consent.isGranted || consent.isWithdrawalConfirmed) return true
            val isKnown = home.settings().service == null || home.enrolment.enrolled != null
            val told = !isKnown || Withdrawal(deviceId, settings.fleet, address(), settings.trusted, log = log).tell(stop = stop)
            if (told) consent.confirm()
            return told
        } finally {
            running.unlock()
        }
    }

    /** Plans jobs, if there is consent, and before them the enrolment. */
    private fun plan() {
        if (!consent.isGranted) {
            if (!consent.isWithdrawalConfirmed) platform.scheduleWithdrawal() // the process ended before it was planned
            return
        }
        platform.schedule(settings)
        if (settings.service == null || home.enrolment.enrolled != null) return
        val refusal = home.enrolment.asked?.refusal
        states.set(refusal ?: FleetState.Waiting(FleetState.Waiting.Why.ENROLMENT))
        if (refusal == null) platform.scheduleEnrolment()
    }

    /** Deletes recordings and what the phone has learned from them, once no job runs; whether that could be done. */
    private fun erase(): Boolean = running.withLock {
        noting {
            home.recordings.deleteRecursively()
            home.labels.delete()
            synchronized(storing) {
                FolderStorage(home.state(settings), log).erase() // also where it is another phone's
                synchronized(this) { opened = null } // its owner is gone too
            }
            closePredictor()
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
