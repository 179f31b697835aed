package io.shoal.android

import android.content.Context
import io.shoal.core.Windows

/**
 * Where a phone's examples come from. An app implements it over its own data, or extends [RecordedWindows]. WorkManager may start the
 * app's process for a job alone: nothing that an activity set up may be needed here.
 */
public interface WindowSource {
    /**
     * The examples as they are now, or null where there are none yet: then this job does nothing.
     *
     * @throws io.shoal.core.DataException they cannot be used
     */
    public fun load(context: Context): Windows?
}
