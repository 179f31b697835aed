package io.shoal.core

import io.shoal.core.wire.DeclineReason

/** A request to stop the client, raised before the work is finished; not an error of the plan. */
internal class StoppedException : RuntimeException()

/** A stored blob that is missing or damaged. It must be fetched again. */
internal class MissingBlobException(val digest: String) : RuntimeException("blob $digest is missing")

/** A plan that breaks a rule of the policy. The text begins with the rule. */
internal class PolicyBrokenException(message: String) : ShoalException(message)

/** Outcome of work on data that came from outside. */
internal sealed interface Contained<out T> {
    class Done<T>(val value: T) : Contained<T>

    /** [error] is null if nothing failed, and the plan is declined for another reason. */
    class Failed(val reason: DeclineReason, val detail: String, val error: Throwable? = null) : Contained<Nothing>
}

/**
 * Run [body], the second ring around faults: every error that it throws, of memory and of native
 * libraries too, becomes a reason to decline. Only the requests to go on later pass: [StoppedException] and
 * [MissingBlobException]. Nothing is stored within it.
 */
internal inline fun <T> contained(body: () -> T): Contained<T> = try {
    Contained.Done(body())
} catch (stopped: StoppedException) {
    throw stopped
} catch (missing: MissingBlobException) {
    throw missing
} catch (error: Throwable) {
    Contained.Failed(reasonOf(error), describe(error), error.takeIf { it !is PolicyBrokenException })
}

/** Return the reason of the decline that reports an error from a plan. */
internal fun reasonOf(error: Throwable): DeclineReason = when (error) {
    is PolicyBrokenException -> DeclineReason.POLICY
    is DataException -> DeclineReason.DATA
    is BundleException -> DeclineReason.BUNDLE
    else -> DeclineReason.FAILED
}

/** Return the text of an error on one line of at most 1,000 characters. It never throws. */
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
