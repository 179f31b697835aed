package io.shoal.android

import io.shoal.core.BrokerAddress
import io.shoal.core.ConfigException
import io.shoal.core.Current
import io.shoal.core.FolderStorage
import io.shoal.core.Log
import io.shoal.core.Owner
import io.shoal.core.Packaged
import io.shoal.core.Predictor
import io.shoal.core.RoundMeasurement
import io.shoal.core.Route
import io.shoal.core.ShoalException
import io.shoal.core.Storage
import io.shoal.core.StorageException
import io.shoal.core.StorageWatcher
import io.shoal.core.Tensor
import io.shoal.core.WatchedStorage
import io.shoal.core.Withdrawal
import io.shoal.core.unless
import java.io.File
import java.io.IOException
import java.util.Optional
import java.util.concurrent.CompletableFuture
import java.util.concurrent.Executor
import java.util.concurrent.locks.ReentrantLock
import kotlin.concurrent.withLock
import kotlin.math.ceil

/**
 * A fleet that this phone takes part in. Functions may be called on any thread, also the main
 * thread, but for those that say that they read files. Settings, consent, jobs, labels and models
 * outlive the process; listeners do not.
 */
public class Fleet internal constructor(
    /** Name of the fleet. */
    public val name: String,
    internal val home: Home,
    private val platform: Platform,
    private val log: Log = LogcatLog,
) {
    /**
     * Lock held while a job runs, and while the fleet's folder is erased or deleted. Its holder
     * must not wait for [disk], whose thread waits for the lock.
     */
    internal val running = ReentrantLock()

    /** True while a job of this fleet runs. */
    @Volatile
    internal var isWorking = false
    internal val states = States(Stored(platform.reader) { home.lastState }, ::shown, log)
    private val models = Observers<Unit>(log)
    private val rounds = Observers<RoundMetrics>(log)
    private val watcher = object : StorageWatcher {
        override fun onModel(current: Current) = models.tell(Unit)

        override fun onRound(measurement: RoundMeasurement) = rounds.tell(RoundMetrics(measurement))
    }
    private val predicting = Any()

    /**
     * Lock held while the app's model is stored, and while the state folder is erased or deleted.
     * Taken after [running] and [predicting].
     */
    private val storing = Any()
    private var predictor: Predictor? = null
    private val stored = FleetSettings(home, platform.reader)
    private var openStorage: OpenStorage? = null

    /** Open storage, with its folder and owner. */
    private class OpenStorage(val folder: File, val owner: Owner?, val storage: WatchedStorage)

    /** Consent of the phone's owner to take part. */
    public val consent: Consent = Consent(home, platform.disk, platform.reader, ::join, ::withdrawn, ::erase, platform::isUnlocked)

    /** Labels of the fleet's recordings. */
    public val labels: Labels = Labels(home, platform.disk, { consent.isGranted }, log)

    /** Recordings on this phone. */
    public val recordings: StoredRecordings = StoredRecordings(home, platform.disk)

    private val enroller =
        Enroller(name, home.enrolment, platform::desk, { platform.key(home.keyAlias) }, { consent.isGranted }, log, platform::attest)

    /** State of the phone's work for this fleet. */
    public val state: FleetState get() = shown { states.now }

    /**
     * Model that answers, or null before the first one, and never again. It reads files, and the
     * first access may verify the app's own model: use [addModelListener] on the main thread.
     *
     * @throws ConfigException the state folder is that of another phone, cannot be written, or is in
     *   use by another process of the app, or the app's own model cannot be used
     */
    @get:Throws(ConfigException::class)
    public val model: ModelInfo?
        get() = storageWithModel().current()?.let(ModelInfo.Companion::of)

    /**
     * Metrics of the model that was offered last, or null before the first offer. It reads a small
     * file: do not use it on the main thread.
     *
     * @throws ConfigException the state folder is that of another phone, cannot be written, or is in
     *   use by another process of the app
     */
    @get:Throws(ConfigException::class)
    public val modelMetrics: ModelMetrics?
        get() = storage().session().offer?.let { ModelMetrics(Evaluation.of(it.before), Evaluation.of(it.evaluated)) }

    /**
     * Id of the phone in the fleet. If the service chooses it, it is empty before the phone is
     * enrolled. It reads small files: do not use it on the main thread.
     *
     * @throws ConfigException the phone has left the fleet, the stored settings cannot be used, or
     *   the disk is full and the phone has no id yet
     */
    @get:Throws(ConfigException::class)
    public val deviceId: String
        get() = settings.let { if (it.service != null) it.deviceId.orEmpty() else home.deviceId(it) }

    /**
     * Settings of the app, without the service's credentials.
     *
     * @throws ConfigException the fleet has no settings, or the stored ones cannot be used
     */
    internal val appSettings: ShoalSettings get() = stored.app

    /**
     * Settings of the app, with the service's credentials of the phone.
     *
     * @throws ConfigException the fleet has no settings, or the stored ones cannot be used
     */
    internal val settings: ShoalSettings get() = stored.complete

    private fun shown(state: () -> FleetState): FleetState = when {
        !platform.isUnlocked -> FleetState.Waiting(FleetState.Waiting.Reason.UNLOCK)
        consent.isGranted -> state()
        else -> FleetState.Blocked(FleetState.Blocked.Reason.CONSENT, "no consent")
    }

    /**
     * Call [listener], on [executor], with the current state and with each one that follows. The
     * library waits for a listener only if the executor runs it on the thread that hands it over.
     */
    public fun addListener(listener: FleetListener, executor: Executor): Unit = states.add(listener, executor)

    /** Stop calling the listener. */
    public fun removeListener(listener: FleetListener): Unit = states.remove(listener)

    /**
     * Call [listener], on [executor], with the model that answers, once it was read, and with each
     * one that follows.
     */
    public fun addModelListener(listener: ModelListener, executor: Executor) {
        models.add(listener, executor, null) { readableModel()?.let(listener::onModel) }
        platform.disk.execute { if (readableModel() != null) models.tell(Unit, listener) }
    }

    /** Return the model in use if it can be read. A listener gets no other. */
    private fun readableModel(): ModelInfo? = try {
        storage().current()?.let(ModelInfo.Companion::of)
    } catch (_: ConfigException) {
        null
    }

    /** Stop calling the listener. */
    public fun removeModelListener(listener: ModelListener): Unit = models.remove(listener)

    /** Call [listener], on [executor], with each round that the phone carries out from now on. */
    public fun addRoundListener(listener: RoundListener, executor: Executor): Unit = rounds.add(listener, executor, null, listener::onRound)

    /** Stop calling the listener. */
    public fun removeRoundListener(listener: RoundListener): Unit = rounds.remove(listener)

    /**
     * Plan one job, to run as soon as the constraints hold, in place of one that waits, for example
     * after an error. If one is running, it is the one. Without consent nothing is planned.
     *
     * @throws ConfigException the phone has left the fleet
     */
    @Throws(ConfigException::class)
    public fun requestTraining() {
        if (!isWorking) request(RoundRequest.soon())
    }

    /**
     * Plan a job if there is consent.
     *
     * @throws ConfigException the phone has left the fleet
     */
    internal fun request(job: RoundRequest) {
        if (!consent.isGranted) return
        val current = appSettings
        tryWriting { platform.request(job, current) }
    }

    /**
     * Return the answers to examples [x] (n, channels, time) by the model in use. This needs no
     * connection and no consent, and does not wait for training. Do not call it on the main thread: the first call verifies the bundle.
     *
     * @throws io.shoal.core.ModelUnavailableException there is no model yet
     * @throws ConfigException the model is damaged or that of another phone, or the app's own
     *   cannot be used or stored; ExecuTorch does not run on this phone, or another process of the
     *   app uses the fleet
     * @throws io.shoal.core.DataException the examples have another shape
     * @throws ShoalException the model cannot answer
     */
    @Throws(ShoalException::class)
    public fun predict(x: Tensor): Prediction = predicted { predict(x) }

    /**
     * Return the answer to the next [window] (1, channels, time) of a stream, such as that of
     * [SensorRecorder.watch], which begins at [beginNs] of the sensors' clock
     * (`SystemClock.elapsedRealtimeNanos`). Activities last, so the windows before it count. Answers
     * of [predict] are of each window alone. Do not call it on the main thread.
     *
     * @throws io.shoal.core.ModelUnavailableException there is no model yet
     * @throws ConfigException the model is damaged or that of another phone, or the app's own
     *   cannot be used or stored; ExecuTorch does not run on this phone, or another process of the
     *   app uses the fleet
     * @throws io.shoal.core.DataException the window has another shape
     * @throws ShoalException the model cannot answer
     */
    @Throws(ShoalException::class)
    public fun predictNext(window: Tensor, beginNs: Long): Prediction = predicted { predictNext(window, (beginNs + platform.epochNs) / 1e9) }

    private fun predicted(answer: Predictor.() -> Tensor): Prediction = synchronized(predicting) {
        val opened = opened()
        val numbers = opened.answer()
        Prediction.of(opened.task, opened.classes, numbers)
    }

    private fun opened(): Predictor =
        predictor ?: Predictor(storageWithModel(), platform.answering(home.programs), settings.trusted, remembers = { consent.isGranted }).also { predictor = it }

    /**
     * Take the question that is due about a long stretch of windows that [predictNext] answered
     * with one class, or null. It counts as asked from then on, also after a restart. Without
     * consent, and without a model, none is due. Of one day, at most [maxPerDay] are, and none about
     * a time that has a label. It reads files: do not use it on the main thread.
     *
     * @throws ConfigException the state folder is that of another phone, cannot be written, or is in
     *   use by another process of the app, or the app's own model cannot be used
     */
    @Throws(ConfigException::class)
    public fun takeQuestion(maxPerDay: Int): Labels.LabelQuestion? = synchronized(predicting) {
        if (!consent.isGranted) return null
        val times by lazy { Labels.LabelledTime.read(home.labels).filter { it.source != LabelSource.HINT && it.label.isNotEmpty() } }
        val opened = opened()
        val due = opened.takeQuestion(maxPerDay, System.currentTimeMillis() / 1000.0) { asked ->
            times.any { it.fromMs < 1000 * asked.endS && it.untilMs > 1000 * asked.beginS }
        }
        due?.let { Labels.LabelQuestion((1000 * it.beginS).toLong(), ceil(1000 * it.endS).toLong(), listOf(it.label) + (opened.classes - it.label)) }
    }

    /**
     * Mean number of windows of an activity, as [predictNext] has learnt it from the model's
     * answers; null before it is known. It reads files: do not use it on the main thread.
     *
     * @throws ConfigException the state folder is that of another phone, cannot be written, or is in
     *   use by another process of the app, or the app's own model cannot be used
     */
    @get:Throws(ConfigException::class)
    public val activityWindows: Double?
        get() = synchronized(predicting) { opened().activity }

    /**
     * Return a new recorder of the phone's sensors for this fleet. It holds no sensor before
     * [SensorRecorder.start] or [SensorRecorder.watch]. Let one record at a time: two store the same
     * samples twice. One may watch while another records.
     *
     * @param spec sensors to record; null for those of the fleet's [RecordedWindows]
     * @throws ConfigException the phone lacks one of the sensors, the app lacks a permission, or
     *   the fleet's windows are no [RecordedWindows]
     */
    @JvmOverloads
    @Throws(ConfigException::class)
    public fun recorder(spec: WindowSpec? = null, options: RecordingOptions = RecordingOptions()): SensorRecorder =
        platform.recorder(this, spec ?: ownSpec(), options)

    private fun ownSpec(): WindowSpec = (appSettings.source() as? RecordedWindows)?.spec
        ?: throw ConfigException("fleet $name: ${appSettings.windows.name} does not extend RecordedWindows; pass the sensors to record as spec")

    /**
     * Return a certificate signing request (PKCS#10, PEM) for the phone's key, for the authority of
     * the fleet's broker. The first call makes the key in the Android Keystore. Do not call it on
     * the main thread.
     *
     * @throws ConfigException the phone has left the fleet, or the Keystore fails
     */
    @Throws(ConfigException::class)
    public fun certificateRequest(): String = withKey { it.request(deviceId) }

    /**
     * Store the certificates (PEM, the phone's own first) that the authority made from
     * [certificateRequest]. Jobs use them from now on. Do not call it on the main thread.
     *
     * @throws ConfigException they are not certificates, or not for this phone's key; the Keystore
     *   fails, or the disk is full
     */
    @Throws(ConfigException::class)
    public fun installCertificate(pem: String) {
        withKey {
            it.install(pem)
            home.certificates = pem
        }
    }

    private fun <T> withKey(act: (DeviceKey) -> T): T = try {
        act(platform.key(home.keyAlias))
    } catch (error: ConfigException) {
        throw error
    } catch (error: Exception) { // the Keystore throws errors of many kinds
        throw ConfigException("fleet $name: the Keystore failed: $error", error)
    }

    /**
     * Leave the fleet without telling the aggregator; call [Consent.withdraw] before to tell it. It
     * renames one small file before it returns. A running job ends. Then consent, jobs, session,
     * private tensors, models and the phone's key are deleted, and recordings only with
     * [eraseRecordings]. A thread of the library does this, and completes the result: true if all of
     * it is gone, false if the key could not be deleted. Do not wait for the result on the main
     * thread. If the process ends before, the files stay, without consent: call this again.
     */
    @JvmOverloads
    public fun leave(eraseRecordings: Boolean = false): CompletableFuture<Boolean> {
        consent.withdraw()
        val forget = stored.forgetting()
        return platform.disk.outcome {
            val isDeleted = running.withLock {
                synchronized(storing) {
                    synchronized(this) { // nobody opens the state folder while it is being deleted
                        home.clear(eraseRecordings)
                        forget()
                        openStorage = null
                    }
                }
                consent.confirm() // nobody can be told any more
                closePredictor()
                tryWriting { withKey(DeviceKey::delete) }
            }
            states.set(FleetState.Idle)
            isDeleted
        }
    }

    /** Replace the settings; [token] is for the phone's enrolment. */
    internal fun configure(settings: ShoalSettings, token: String? = null) {
        if (settings.service == null) BrokerAddress.parse(settings.broker).login(settings.login?.user, settings.login?.password)
        stored.set(settings)
        val wasLocked = !platform.isUnlocked
        platform.disk.execute {
            if (wasLocked) {
                stored.refresh()
                states.refresh()
            }
            closePredictor() // it may trust other keys now
            tryWriting {
                home.claim()
                home.save(settings)
                token?.let(home.enrolment::store)
                plan()
                bringModel()
            }
        }
    }

    /**
     * Enrol the phone, or renew its certificate, if the app's settings ask for it and it is due.
     * Return null if a job can continue, or the obstacle. It blocks, and throws no errors.
     */
    internal fun enrol(): FleetState? {
        val state = try {
            val (app, before) = Pair(appSettings, settings)
            if (app.service == null) return null
            loader().require() // a phone that cannot train needs no certificate
            enroller.advance(app) ?: return null.also { onEnrolled(before) }
        } catch (error: IOException) { // the disk is full, for instance
            log.write(Log.Level.WARNING, "fleet $name: $error")
            FleetState.Waiting(FleetState.Waiting.Reason.STORAGE)
        } catch (error: ConfigException) {
            stateAfter(error)
        } catch (error: Exception) { // the Keystore throws errors of many kinds
            FleetState.Blocked(FleetState.Blocked.Reason.FAILED, error.toString())
        }
        states.set(state)
        tryWriting { home.noteState(state) }
        return state
    }

    /** Enrol the phone during a job. Do not wait for the result after [stop] has returned true. */
    internal fun enrol(stop: () -> Boolean): FleetState? {
        val result = unless(stop) { Optional.ofNullable(enrol()) } ?: return FleetState.Waiting(FleetState.Waiting.Reason.JOB)
        return result.orElse(null)
    }

    private fun onEnrolled(before: ShoalSettings) {
        stored.refresh()
        if (settings == before) return
        closePredictor() // it may trust other keys now
        states.set(FleetState.Idle)
        tryWriting { home.noteState(FleetState.Idle) }
    }

    /**
     * Take the app's own model into use, unless a model of the fleet is in use. A job calls this
     * before it begins.
     *
     * @throws ConfigException it cannot be used
     */
    internal fun bringModel() {
        val assets = settings.packaged ?: return
        synchronized(storing) {
            val storage = storage()
            val current = storage.current()
            if (current != null && current.run != Packaged.RUN) return
            try {
                Packaged.install(storage, platform.asset(assets.bundle), assets.weights?.let(platform::asset), settings.trusted)
            } catch (error: ConfigException) {
                throw error
            } catch (error: ShoalException) {
                throw ConfigException("model ${assets.bundle}: ${error.message}", error)
            }
        }
    }

    /** Return [storage], with the app's own model in use if no other can answer. */
    private fun storageWithModel(): Storage = try {
        storage().also { if (Packaged.isMissing(it)) bringModel() }
    } catch (error: IOException) {
        throw StorageException("fleet $name: the app's own model cannot be stored: $error", error)
    }

    private fun closePredictor(): Unit = synchronized(predicting) {
        predictor?.close()
        predictor = null
    }

    /**
     * Return the storage of the session and the model.
     *
     * @throws ConfigException the state folder is that of another phone, restored from a backup, or
     *   in use by another process of the app
     */
    internal fun storage(): Storage = synchronized(this) {
        val (folder, owner) = Pair(home.state(settings), owner())
        home.claim()
        val open = openStorage?.takeIf { it.folder == folder && it.owner == owner }
            ?: OpenStorage(folder, owner, WatchedStorage(FolderStorage(folder, log, owner), watcher)).also { openStorage = it }
        open.storage
    }

    /**
     * Return the owner of the state folder, or null before the service has chosen the phone's id.
     */
    private fun owner(): Owner? = deviceId.takeIf { it.isNotEmpty() }?.let { Owner(it, settings.fleet) }

    /** Key of the phone's certificate, or null if the app uses none. */
    internal val certifiedKey: DeviceKey?
        get() = if (settings.service != null || home.certificates != null) platform.key(home.keyAlias) else null

    /**
     * Return the broker's address.
     *
     * @throws ConfigException it is not a broker's address, or its authority is not a certificate
     */
    internal fun address(route: Route = Route.System): BrokerAddress {
        val certified = certifiedKey
        val caPem = settings.brokerCaPem
        val tls = if (caPem == null && certified == null) null else (certified ?: platform.key(home.keyAlias)).tls(caPem, certified != null)
        return BrokerAddress.parse(settings.broker, tls, route).login(settings.login?.user, settings.login?.password)
    }

    internal fun loader() = platform.loader(home.programs)

    internal val disk: Executor get() = platform.disk

    private fun join() {
        states.refresh()
        tryWriting { plan() }
    }

    private fun withdrawn() {
        states.refresh()
        tryWriting {
            platform.cancel()
            if (!consent.isGranted && !consent.isWithdrawalConfirmed) platform.scheduleWithdrawal()
        }
    }

    /**
     * Tell the aggregator of a withdrawal, once no job runs. Return true if it has confirmed it or
     * need not know. It blocks.
     *
     * @throws io.shoal.core.LinkException the broker cannot be reached
     * @throws ConfigException the phone has left the fleet
     */
    internal fun tellWithdrawal(stop: () -> Boolean): Boolean {
        running.lock()
        try {
            if (consent.isGranted || consent.isWithdrawalConfirmed) return true
            val isKnown = home.settings().service == null || home.enrolment.credentials != null
            val isConfirmed = !isKnown || Withdrawal(deviceId, settings.fleet, address(), settings.trusted, log = log).tell(stop = stop)
            if (isConfirmed) consent.confirm()
            return isConfirmed
        } finally {
            running.unlock()
        }
    }

    /** Plan jobs, if there is consent, and before them the enrolment. */
    private fun plan() {
        if (!consent.isGranted) {
            if (!consent.isWithdrawalConfirmed) platform.scheduleWithdrawal() // the last process ended before it was planned
            return
        }
        platform.schedule(settings)
        if (settings.service == null || home.enrolment.credentials != null) return
        val pending = home.enrolment.pendingToken
        states.set(pending?.refusal ?: FleetState.Waiting(FleetState.Waiting.Reason.ENROLMENT))
        if (pending != null && pending.refusal == null) platform.scheduleEnrolment()
    }

    /**
     * Delete recordings and everything learned from them, once no job runs. Return true if that
     * succeeded.
     */
    private fun erase(): Boolean = running.withLock {
        tryWriting {
            home.recordings.deleteRecursively()
            home.labels.delete()
            synchronized(predicting) { // it must not store again what it has learnt of the stream
                synchronized(storing) {
                    FolderStorage(home.state(settings), log).erase() // even if it is another phone's
                    synchronized(this) { openStorage = null } // the owner was erased, too
                }
                closePredictor()
            }
        }
    }

    /**
     * Run a function that writes files, on a thread that nobody waits for. Return true if it
     * succeeded.
     */
    private fun tryWriting(write: () -> Unit): Boolean = try {
        write()
        true
    } catch (error: IOException) {
        failed(error)
    } catch (error: ConfigException) {
        failed(error)
    }

    private fun failed(error: Exception): Boolean {
        log.write(Log.Level.ERROR, "fleet $name: $error")
        states.set(stateAfter(error))
        return false
    }
}
