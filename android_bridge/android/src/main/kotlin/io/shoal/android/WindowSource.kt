package io.shoal.android

import android.content.Context
import io.shoal.core.DataException
import io.shoal.core.Windows

/**
 * Source of a phone's examples. An app implements it over its own data, or extends
 * [RecordedWindows]. WorkManager may start the app's process for a job alone: the source must not
 * need anything that an activity set up.
 */
public interface WindowSource {
    /**
     * Return the phone's current examples for this [fleet], or null if there are none yet: then the
     * job does nothing. A thread of the job calls it, and it may block.
     *
     * @throws DataException the examples cannot be used
     */
    @Throws(DataException::class)
    public fun load(context: Context, fleet: String): Windows?
}
