package io.shoal.core

import io.shoal.core.wire.DeclineReason

/** Work is left because the client was told to stop; no error of the plan's. */
internal class Stopped : RuntimeException()

/** A blob that the work needs is not here: it was damaged, and has to be fetched again. */
internal class MissingBlob(val digest: String) : RuntimeException("blob $digest is not here")

/** A plan asks for more than the device's owner permits; the text begins with the rule. */
internal class PolicyBroken(message: String) : ShoalException(message)

/** What became of a piece of work on what somebody else made. */
internal sealed interface Contained<out T> {
    class Done<T>(val value: T) : Contained<T>

    class Failed(val reason: DeclineReason, val detail: String) : Contained<Nothing>
}

/**
 * The second ring around what comes from outside: whatever [body] throws, errors of memory and of native libraries included, becomes a
 * reason. Only what says that the work is to go on later passes: [Stopped] and [MissingBlob]. Nothing is stored within it.
 */
internal inline fun <T> contained(body: () -> T): Contained<T> = try {
    Contained.Done(body())
} catch (stopped: Stopped) {
    throw stopped
} catch (missing: MissingBlob) {
    throw missing
} catch (error: Throwable) {
    Contained.Failed(reasonOf(error), describe(error))
}

/** The reason of a decline for what was thrown while a plan was carried out. */
internal fun reasonOf(error: Throwable): DeclineReason = when (error) {
    is PolicyBroken -> DeclineReason.POLICY
    is DataException -> DeclineReason.DATA
    is BundleException -> DeclineReason.BUNDLE
    else -> DeclineReason.FAILED
}

/** What was thrown in at most 1,000 characters on one line; it fails itself in no case. */
internal fun describe(error: Throwable): String = try {
    shortened(printable(if (error is ShoalException) error.message.orEmpty() else error.toString()))
} catch (_: Throwable) {
    error.javaClass.name
}

private fun shortened(text: String): String = if (text.codePointCount(0, text.length) <= DETAIL_LENGTH) {
    text
} else {
    text.substring(0, text.offsetByCodePoints(0, DETAIL_LENGTH))
}

private const val DETAIL_LENGTH = 1000
