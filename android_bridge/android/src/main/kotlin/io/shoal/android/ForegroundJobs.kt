package io.shoal.android

import android.content.Context
import androidx.work.ForegroundInfo
import io.shoal.core.InternalShoalApi
import java.util.UUID
import java.util.concurrent.ExecutionException
import java.util.concurrent.Future

/**
 * Notifications of jobs in the foreground. An app that wants them adds `shoal-android-foreground`;
 * otherwise no job asks for the foreground.
 */
@InternalShoalApi
public interface ForegroundJobs {
    /** Return the notification of a [job], and the type of its service. */
    public fun info(context: Context, job: ForegroundJob): ForegroundInfo
}

/**
 * Content of the notification of a job.
 *
 * @param id WorkManager's id, by which it can be cancelled
 * @param typed true if the service must state its type
 * @param step number of finished steps of the plan
 * @param of number of all its steps; 0 while nothing is trained
 */
@InternalShoalApi
public class ForegroundJob(
    public val id: UUID,
    public val fleet: String,
    public val typed: Boolean,
    public val step: Long = 0,
    public val of: Long = 0,
)

/** Return the notifications of `shoal-android-foreground`, or null if the app does not have it. */
internal fun foregroundJobs(): ForegroundJobs? = try {
    Class.forName("io.shoal.foreground.TrainingNotification").getDeclaredConstructor().newInstance() as ForegroundJobs
} catch (_: ClassNotFoundException) {
    null
}

/** Job in the foreground. [show] asks Android to show so many steps of so many. */
internal class JobForeground(private val show: (step: Long, of: Long) -> Future<*>, private val nowMs: () -> Long) {
    private var isForeground = false
    private var shownMs = 0L
    private var percent = -1L

    /**
     * Ask for the foreground. Return the error if it is refused, or null. From API 31 on it may be
     * refused to an app in the background.
     */
    fun begin(): Throwable? = try {
        show(0, 0).get()
        isForeground = true
        null
    } catch (error: ExecutionException) {
        error.cause ?: error
    } catch (error: IllegalStateException) {
        error
    }

    /** Show the progress, once a second at most, and if the percentage has changed. */
    fun progress(step: Long, of: Long) {
        if (!isForeground || of <= 0) return
        val (now, next) = nowMs() to 100 * step / of
        if (next == percent || now - shownMs < EVERY_MS) return
        percent = next
        shownMs = now
        try {
            show(step, of)
        } catch (_: IllegalStateException) {
            // the notification stays as it is, and the job continues
        }
    }

    private companion object {
        const val EVERY_MS = 1_000L
    }
}
