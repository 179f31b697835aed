package io.shoal.android

import android.content.Context
import androidx.work.ForegroundInfo
import io.shoal.core.InternalShoalApi
import java.util.UUID
import java.util.concurrent.ExecutionException
import java.util.concurrent.Future

/** What a job in the foreground shows. An app that wants it adds `shoal-android-foreground`; without that no job asks for the foreground. */
@InternalShoalApi
public interface ForegroundJobs {
    /** The notification of a [job], and how Android is asked. */
    public fun info(context: Context, job: ForegroundJob): ForegroundInfo
}

/**
 * A job as its notification shows it.
 *
 * @param id WorkManager's, by which it can be cancelled
 * @param typed whether the service has to say its type
 * @param step how many of the plan's steps are done
 * @param of all of them; 0 while nothing is trained
 */
@InternalShoalApi
public class ForegroundJob(
    public val id: UUID,
    public val fleet: String,
    public val typed: Boolean,
    public val step: Long = 0,
    public val of: Long = 0,
)

/** The artefact's, if the app has it. */
internal fun foregroundJobs(): ForegroundJobs? = try {
    Class.forName("io.shoal.foreground.TrainingNotification").getDeclaredConstructor().newInstance() as ForegroundJobs
} catch (_: ClassNotFoundException) {
    null
}

/** One job in the foreground. [show] asks Android to show so many steps of so many. */
internal class JobForeground(private val show: (step: Long, of: Long) -> Future<*>, private val nowMs: () -> Long) {
    private var given = false
    private var shownMs = 0L
    private var percent = -1L

    /** Asks for the foreground; why it is refused, or null. From API 31 on it may be refused to an app in the background. */
    fun begin(): Throwable? = try {
        show(0, 0).get()
        given = true
        null
    } catch (error: ExecutionException) {
        error.cause ?: error
    } catch (error: IllegalStateException) {
        error
    }

    /** So much is done; shown once a second at most, and where the percentage is another one. */
    fun progress(step: Long, of: Long) {
        if (!given || of <= 0) return
        val (now, next) = nowMs() to 100 * step / of
        if (next == percent || now - shownMs < EVERY_MS) return
        percent = next
        shownMs = now
        try {
            show(step, of)
        } catch (_: IllegalStateException) {
            // the job goes on as it was shown before
        }
    }

    private companion object {
        const val EVERY_MS = 1_000L
    }
}
