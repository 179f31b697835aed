package io.shoal.android

import android.content.Context
import android.os.SystemClock
import android.util.Log
import androidx.work.BackoffPolicy
import androidx.work.Constraints
import androidx.work.ExistingPeriodicWorkPolicy
import androidx.work.ExistingWorkPolicy
import androidx.work.NetworkType
import androidx.work.OneTimeWorkRequest
import androidx.work.PeriodicWorkRequest
import androidx.work.WorkManager
import io.shoal.core.BrokerAddress
import io.shoal.core.Clock
import io.shoal.core.ConfigException
import io.shoal.core.Current
import io.shoal.core.FolderStorage
import io.shoal.core.Phone
import io.shoal.core.Tensor
import io.shoal.core.Windows
import java.util.concurrent.TimeUnit

/** What an app calls: enrol once, and this phone takes part in the fleet's training whenever the constraints hold. */
public object Shoal {
    private const val PERIODIC = "io.shoal.rounds"
    private const val ONCE = "io.shoal.round"

    /**
     * Takes part from now on, with these settings in place of earlier ones; over restarts of app and phone, until [leave]. Call it at every
     * start of the app if you like: jobs that are already planned stay.
     *
     * @return the device's id in the fleet
     * @throws ConfigException a setting cannot be used
     */
    @JvmStatic
    public fun enrol(context: Context, settings: ShoalSettings): String {
        val home = Home(context.applicationContext)
        address(context, home, settings)
        settings.trusted
        home.save(settings)
        val request = PeriodicWorkRequest.Builder(DueWorker::class.java, settings.everyHours.toLong(), TimeUnit.HOURS)
            .setConstraints(constraints(settings))
        WorkManager.getInstance(context).enqueueUniquePeriodicWork(PERIODIC, ExistingPeriodicWorkPolicy.UPDATE, request.build())
        return home.deviceId(settings)
    }

    /**
     * One job as soon as the constraints hold. There is one chain of jobs: if one is waiting or running, that is the one.
     *
     * @throws ConfigException this phone is not enrolled
     */
    @JvmStatic
    public fun trainSoon(context: Context) {
        val settings = Home(context.applicationContext).settings()
        val request = OneTimeWorkRequest.Builder(RoundWorker::class.java).setConstraints(constraints(settings))
        // WorkManager refuses a back-off together with an idle phone: it tries again when the phone is idle again.
        if (!settings.requireIdle) request.setBackoffCriteria(BackoffPolicy.EXPONENTIAL, 1, TimeUnit.MINUTES)
        WorkManager.getInstance(context).enqueueUniqueWork(ONCE, ExistingWorkPolicy.KEEP, request.build())
    }

    /** Takes part no more: jobs, session, private tensors, models and the device's key are deleted; recordings only if [recordings]. */
    @JvmStatic
    @JvmOverloads
    public fun leave(context: Context, recordings: Boolean = false) {
        val manager = WorkManager.getInstance(context)
        manager.cancelUniqueWork(PERIODIC)
        manager.cancelUniqueWork(ONCE)
        Answers.close()
        Home(context.applicationContext).clear(recordings)
        DeviceKey(context.applicationContext).delete()
    }

    /** Whether this phone is enrolled, and what came of the last job. */
    @JvmStatic
    public fun status(context: Context): ShoalStatus = Home(context.applicationContext).status()

    /**
     * A certificate signing request (PKCS#10, PEM) for this device's key, for the authority of the fleet's broker. The key is made in the
     * Android Keystore the first time.
     *
     * @throws ConfigException this phone is not enrolled
     */
    @JvmStatic
    public fun certificateRequest(context: Context): String {
        val home = Home(context.applicationContext)
        return DeviceKey(context.applicationContext).request(home.deviceId(home.settings()))
    }

    /**
     * Keeps the certificates (PEM, the device's own first) that the authority made from [certificateRequest]; jobs use them from now on.
     *
     * @throws ConfigException not certificates, or not for this device's key
     */
    @JvmStatic
    public fun installCertificate(context: Context, pem: String) {
        DeviceKey(context.applicationContext).install(pem)
        Home(context.applicationContext).certificates = pem
    }

    /**
     * Class probabilities (n, classes) float32 of examples [x] (n, channels, time), by the model in use: the last that was released, or left by
     * a finished run, and that this phone could use. Needs no connection, and goes on while other runs train. Not for the main thread; it may wait for one batch of a
     * training.
     *
     * @throws ConfigException this phone is not enrolled, no model was released to it and no run has finished on it, or its model is damaged
     */
    @JvmStatic
    public fun predict(context: Context, x: Tensor): Tensor {
        val home = Home(context.applicationContext)
        return Answers.predict(home, home.settings(), x)
    }

    /**
     * Has [listener] told when [predict] answers with another model from then on, by the thread that predicts; it takes the place of the
     * listener before. `Current.release` is the release's number.
     */
    @JvmStatic
    public fun onReplaced(listener: (Current) -> Unit) {
        Answers.onReplaced = listener
    }

    private fun constraints(settings: ShoalSettings): Constraints = Constraints.Builder()
        .setRequiresCharging(settings.requireCharging)
        .setRequiresDeviceIdle(settings.requireIdle)
        .setRequiresBatteryNotLow(true)
        .setRequiresStorageNotLow(true)
        .setRequiredNetworkType(if (settings.requireUnmetered) NetworkType.UNMETERED else NetworkType.CONNECTED)
        .build()
}

/** The device that these settings describe. */
internal fun phone(context: Context, home: Home, settings: ShoalSettings, windows: Windows): Phone = Phone(
    home.deviceId(settings),
    settings.fleet,
    address(context, home, settings),
    windows,
    FolderStorage(home.state(settings), LogcatLog),
    Runtime.loader(home),
    settings.trusted,
    settings.insecure,
    settings.policy,
    health = DeviceHealth(context)::now,
    clock = PhoneClock,
    log = LogcatLog,
)

/** The system's clocks; the one that cannot be set goes on while the phone sleeps. */
internal object PhoneClock : Clock {
    override fun nowSeconds(): Double = System.currentTimeMillis() / 1000.0

    override fun steadySeconds(): Double = SystemClock.elapsedRealtimeNanos() / 1e9
}

/** @throws ConfigException not a broker's address, or its authority is no certificate */
internal fun address(context: Context, home: Home, settings: ShoalSettings): BrokerAddress {
    val certified = home.certificates != null
    val tls = if (settings.brokerCaPem == null && !certified) null else DeviceKey(context).tls(settings.brokerCaPem, certified)
    return BrokerAddress.parse(settings.broker, tls)
}

/** Core's lines in Android's log, under the tag `Shoal`. */
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
