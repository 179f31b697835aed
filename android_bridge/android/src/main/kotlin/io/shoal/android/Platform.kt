package io.shoal.android

import android.content.Context
import android.os.Process
import android.os.SystemClock
import android.os.UserManager
import android.util.Log
import androidx.work.BackoffPolicy
import androidx.work.Constraints
import androidx.work.Data
import androidx.work.ExistingPeriodicWorkPolicy
import androidx.work.ExistingWorkPolicy
import androidx.work.ListenableWorker
import androidx.work.NetworkType
import androidx.work.OneTimeWorkRequest
import androidx.work.PeriodicWorkRequest
import androidx.work.WorkManager
import io.shoal.core.Clock
import io.shoal.core.ConfigException
import io.shoal.core.GraphLoader
import io.shoal.core.OwnerThread
import io.shoal.executorch.ExecutorchLoader
import java.io.File
import java.io.IOException
import java.util.concurrent.Executor
import java.util.concurrent.Executors
import java.util.concurrent.TimeUnit
import kotlin.concurrent.thread

/** Functions of Android that a fleet needs: jobs, keys, sensors, and the runtime of its models. */
internal interface Platform {
    /** Executor of all writing of files. A task may wait for a job to end, and waits until [isUnlocked]. */
    val disk: Executor

    /** Executor of the first reading of files. Its tasks wait until [isUnlocked], and for nothing else. */
    val reader: Executor

    /** True if somebody has unlocked the phone since it started: before, no file can be read. */
    val isUnlocked: Boolean

    /** Plan jobs from now on. Jobs that are planned already stay. */
    fun schedule(settings: ShoalSettings)

    /** Plan one job. */
    fun request(job: RoundRequest, settings: ShoalSettings)

    /** Plan to enrol the phone as soon as there is a network, unless that is planned already. */
    fun scheduleEnrolment()

    /**
     * Plan to tell the aggregator of a withdrawal as soon as there is a network, unless that is
     * planned already.
     */
    fun scheduleWithdrawal()

    /** Return the attestation of an app's provider for a nonce. */
    fun attest(provider: Attestation, nonce: String): String

    /** Cancel all planned work except the report of a withdrawal. */
    fun cancel()

    /** Return the loader of a job's programs, whose files are written into [folder]. */
    fun loader(folder: File): GraphLoader

    /** Return the loader of programs for predictions, which do not wait for training. */
    fun answering(folder: File): GraphLoader

    /** Return the fleet's key, which has this name in the Keystore. */
    fun key(alias: String): DeviceKey

    /** Return the enrolment service at this address. */
    fun desk(service: String): EnrolmentDesk

    /**
     * Return one of the app's assets.
     *
     * @throws ConfigException there is none of this name
     */
    fun asset(name: String): ByteArray

    /** Difference between Unix time and the sensors' time (ns). */
    val epochNs: Long

    /** Return a recorder of the spec's sensors into a fleet's folder. */
    fun recorder(fleet: Fleet, spec: WindowSpec, options: RecordingOptions): SensorRecorder
}

/** Platform with WorkManager, the Keystore and ExecuTorch. Work is named after the fleet. */
internal class AndroidPlatform(private val context: Context, private val fleet: String) : Platform {
    override val disk = unlocked(DISK)
    override val reader = unlocked(READER)

    /** Return an executor on [executor], whose tasks wait until the phone is unlocked. */
    private fun unlocked(executor: Executor) = Executor { task ->
        executor.execute {
            while (!isUnlocked) Thread.sleep(LOCKED_MS)
            task.run()
        }
    }

    @Volatile
    private var wasUnlocked = false
    override val isUnlocked: Boolean
        get() = wasUnlocked || ((context.getSystemService(Context.USER_SERVICE) as? UserManager)?.isUserUnlocked ?: true).also { wasUnlocked = it }

    override fun schedule(settings: ShoalSettings) {
        val manager = manager()
        manager.cancelUniqueWork("io.shoal.rounds") // the name of the time before an app could have several fleets
        val request = PeriodicWorkRequest.Builder(DueWorker::class.java, settings.interval.toMillis(), TimeUnit.MILLISECONDS)
            .setConstraints(constraints(settings))
            .setInputData(input())
        manager.enqueueUniquePeriodicWork("io.shoal.rounds.$fleet", ExistingPeriodicWorkPolicy.UPDATE, request.build())
    }

    override fun request(job: RoundRequest, settings: ShoalSettings) {
        val request = OneTimeWorkRequest.Builder(RoundWorker::class.java)
            .setConstraints(constraints(settings))
            .setInputData(input(job.errors))
            .setInitialDelay(job.delayMs, TimeUnit.MILLISECONDS)
        // WorkManager refuses a back-off together with an idle phone: after a stop it then waits 30 s, 1 min, ... from the request on.
        if (!settings.requireIdle) request.setBackoffCriteria(BackoffPolicy.LINEAR, RoundRequest.STOPPED_S, TimeUnit.SECONDS)
        manager().enqueueUniqueWork("io.shoal.round.$fleet", job.policy, request.build())
    }

    override fun scheduleEnrolment() = once(EnrolWorker::class.java, "io.shoal.enrol.$fleet")

    override fun scheduleWithdrawal() = once(WithdrawWorker::class.java, "io.shoal.withdrawal.$fleet")

    /** Plan work that needs nothing but a network, unless it is planned already. */
    private fun once(worker: Class<out ListenableWorker>, name: String) {
        val request = OneTimeWorkRequest.Builder(worker)
            .setConstraints(Constraints.Builder().setRequiredNetworkType(NetworkType.CONNECTED).build())
            .setBackoffCriteria(BackoffPolicy.EXPONENTIAL, 1, TimeUnit.MINUTES)
            .setInputData(input())
        manager().enqueueUniqueWork(name, ExistingWorkPolicy.KEEP, request.build())
    }

    override fun attest(provider: Attestation, nonce: String): String = provider.attest(context, nonce)

    override fun cancel() {
        val manager = manager()
        manager.cancelUniqueWork("io.shoal.enrol.$fleet")
        manager.cancelUniqueWork("io.shoal.rounds.$fleet")
        manager.cancelUniqueWork("io.shoal.round.$fleet")
    }

    override fun loader(folder: File): GraphLoader = TRAINING.owned(ExecutorchLoader(folder))

    override fun answering(folder: File): GraphLoader = ANSWERING.owned(ExecutorchLoader(folder))

    override fun key(alias: String): DeviceKey = androidKey(context, alias)

    override fun desk(service: String): EnrolmentDesk = ServiceDesk(service)

    override fun asset(name: String): ByteArray = try {
        context.assets.open(name).use { it.readBytes() }
    } catch (error: IOException) {
        throw ConfigException("asset '$name': missing or not readable: ${error.message}", error)
    }

    override val epochNs: Long get() = sensorEpochNs()

    override fun recorder(fleet: Fleet, spec: WindowSpec, options: RecordingOptions): SensorRecorder =
        SensorRecorder(context, fleet, spec, options)

    private fun input(errors: Int = 0) = Data.Builder().putString(FLEET, fleet).putInt(ERRORS, errors).build()

    private fun manager(): WorkManager = try {
        WorkManager.getInstance(context)
    } catch (error: IllegalStateException) {
        throw ConfigException("WorkManager is not initialised: keep its initializer in the app's manifest, or implement Configuration.Provider", error)
    }

    private fun constraints(settings: ShoalSettings): Constraints = Constraints.Builder()
        .setRequiresCharging(settings.requireCharging)
        .setRequiresDeviceIdle(settings.requireIdle)
        .setRequiresBatteryNotLow(true)
        .setRequiresStorageNotLow(true)
        .setRequiredNetworkType(if (settings.requireUnmetered) NetworkType.UNMETERED else NetworkType.CONNECTED)
        .build()

    companion object {
        private const val LOCKED_MS = 1_000L

        /** Key of the fleet's name in a job's data. */
        const val FLEET = "fleet"

        /** Key of the number of errors before a job in its data. */
        const val ERRORS = "errors"

        /**
         * Threads of the process: one owns the programs of all fleets' jobs, and another those of
         * their predictions.
         */
        private val TRAINING = OwnerThread("shoal-training", ::toBackground)
        private val ANSWERING = OwnerThread("shoal-answering")
        private val DISK = worker("shoal-disk")
        private val READER = worker("shoal-reader")

        private fun worker(name: String) = Executors.newSingleThreadExecutor { task -> thread(start = false, isDaemon = true, name = name) { task.run() } }
    }
}

/** Give the calling thread background priority, so that training does not disturb who uses the phone. */
private fun toBackground() = Process.setThreadPriority(Process.THREAD_PRIORITY_BACKGROUND)

/** Run [body] with background priority, on a thread that is not the library's. */
internal fun <T> atBackgroundPriority(body: () -> T): T {
    val before = Process.getThreadPriority(Process.myTid())
    toBackground()
    return try {
        body()
    } finally {
        Process.setThreadPriority(before)
    }
}

/** Return the difference between Unix time and the sensors' time (ns). */
internal fun sensorEpochNs(): Long = System.currentTimeMillis() * 1_000_000 - SystemClock.elapsedRealtimeNanos()

/** The system's clocks. The one that cannot be set continues while the phone sleeps. */
internal object PhoneClock : Clock {
    override fun nowSeconds(): Double = System.currentTimeMillis() / 1000.0

    override fun steadySeconds(): Double = SystemClock.elapsedRealtimeNanos() / 1e9
}

/** Log in Android's log, under the tag `Shoal`. */
internal object LogcatLog : io.shoal.core.Log {
    override fun write(level: io.shoal.core.Log.Level, line: String) {
        when (level) {
            io.shoal.core.Log.Level.INFO -> Log.i(TAG, line)
            io.shoal.core.Log.Level.WARNING -> Log.w(TAG, line)
            io.shoal.core.Log.Level.ERROR -> Log.e(TAG, line)
        }
    }

    private const val TAG = "Shoal"
}
