package io.shoal.android

import android.content.Context
import io.shoal.core.ConfigException
import java.io.File
import java.util.concurrent.ConcurrentHashMap

/** Entry point of an app: the fleets of this phone. Functions may be called on any thread, also the main thread. */
public object Shoal {
    private val fleets = ConcurrentHashMap<String, Fleet>()

    /**
     * Return a fleet, with these settings in place of all earlier ones: a setting that is not
     * repeated has its default again, but for a stored token. Call it at every start of the app. It
     * reads and writes no file: threads of the library do. Nothing is trained, recorded or sent
     * before [Fleet.consent] is granted. From then on jobs run, over restarts of app and phone,
     * until [Fleet.leave].
     *
     * @param name name of the fleet, as in `shoal serve --fleet`
     * @throws ConfigException a setting cannot be used
     */
    @JvmStatic
    @Throws(ConfigException::class)
    public fun fleet(context: Context, name: String, settings: FleetConfiguration): Fleet {
        val builder = FleetBuilder(name).apply { with(settings) { configure() } }
        val shoalSettings = builder.build()
        return opened(context, name).also { it.configure(shoalSettings, builder.token) }
    }

    /**
     * Return a fleet, with the settings of an earlier call. In the first milliseconds of a process it
     * waits until a thread of the library has read them.
     *
     * @throws ConfigException the fleet has no settings
     */
    @JvmStatic
    @Throws(ConfigException::class)
    public fun fleet(context: Context, name: String): Fleet = opened(context, name).also { it.appSettings }

    private fun opened(context: Context, name: String): Fleet {
        checkName("fleet", name)
        return fleets.getOrPut(name) {
            val app = context.applicationContext
            val folder by lazy { Home.of(File(app.noBackupFilesDir, "shoal"), name).folder } // Android makes the first of them
            Fleet(name, Home { folder }, AndroidPlatform(app, name))
        }
    }
}
