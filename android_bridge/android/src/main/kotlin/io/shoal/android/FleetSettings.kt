package io.shoal.android

import io.shoal.core.ConfigException
import java.util.concurrent.Executor

/** Settings of a fleet: the app's newest, which may not be on disk yet, and what the service added. */
internal class FleetSettings(private val home: Home, reader: Executor) {
    private val stored = Stored(reader) { read() }

    /** The app's settings, and the complete ones that were made of them. */
    private var completion: Pair<ShoalSettings, ShoalSettings>? = null

    /**
     * Settings of the app.
     *
     * @throws ConfigException the fleet has no settings, or the stored ones cannot be used
     */
    val app: ShoalSettings get() = stored.value ?: home.settings()

    /**
     * Settings of the app, with the service's credentials of the phone.
     *
     * @throws ConfigException as [app]
     */
    val complete: ShoalSettings
        @Synchronized get() {
            val app = app
            completion?.takeIf { it.first == app }?.let { return it.second }
            val credentials = if (app.service == null) null else home.enrolment.credentials
            return (credentials?.let(app::with) ?: app).also { completion = Pair(app, it) }
        }

    /** Replace the app's settings. */
    fun set(settings: ShoalSettings) {
        stored.value = settings
    }

    /** Return a function that forgets the settings, unless the app has set others since. */
    fun forgetting(): () -> Unit {
        val leaving = stored.value
        return { stored.change(leaving, null) }
    }

    /** Read the credentials anew. */
    @Synchronized
    fun refresh() {
        completion = null
    }

    private fun read(): ShoalSettings? = try {
        home.settings()
    } catch (_: ConfigException) { // who needs them is told
        null
    }
}
