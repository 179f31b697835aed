package io.shoal.android

import android.content.Context
import io.shoal.core.ConfigException
import java.io.File
import java.util.concurrent.ConcurrentHashMap

/** Where an app begins: the fleets that this phone takes part in. */
public object Shoal {
    private val fleets = ConcurrentHashMap<String, Fleet>()

    /**
     * A fleet with these settings in place of earlier ones; call it at every start of the app. Settings are written by a thread of the
     * library's. Nothing is trained, recorded or sent before [Fleet.consent] is granted; jobs come from then on, over restarts of app and
     * phone, until [Fleet.leave].
     *
     * @param name the fleet's name, as given to `shoal serve --fleet`
     * @throws ConfigException a setting cannot be used
     */
    @JvmStatic
    @Throws(ConfigException::class)
    public fun fleet(context: Context, name: String, settings: FleetConfiguration): Fleet {
        val builder = FleetBuilder(name).apply { with(settings) { configure() } }
        val given = builder.build()
        return opened(context, name).also { it.configure(given, builder.token) }
    }

    /**
     * A fleet with the settings that it was given before.
     *
     * @throws ConfigException it was given none
     */
    @JvmStatic
    @Throws(ConfigException::class)
    public fun fleet(context: Context, name: String): Fleet = opened(context, name).also { it.settings }

    private fun opened(context: Context, name: String): Fleet {
        checkName("fleet", name)
        return fleets.getOrPut(name) {
            val app = context.applicationContext
            Fleet(name, Home.of(File(app.noBackupFilesDir, "shoal"), name), AndroidPlatform(app, name))
        }
    }
}
