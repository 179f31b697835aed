package io.shoal.android

import android.content.Context
import io.shoal.core.DataException
import io.shoal.core.Windows

/**
 * Where a phone's examples come from. An app implements it over its own data, or extends [RecordedWindows]. WorkManager may start the
 * app's process for a job alone: nothing that an activity set up may be needed here.
 */
public interface WindowSource {
    /**
     * The phone's examples for this [fleet], as they are now, or null where there are none yet: then this job does nothing.
     *
     * @throws DataException they cannot be used
     */
    @Throws(DataException::class)
    public fun load(context: Context, fleet: String): Windows?
}
