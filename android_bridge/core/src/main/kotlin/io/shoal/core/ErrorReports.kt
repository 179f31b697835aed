package io.shoal.core

import io.shoal.core.wire.DeclineReason
import io.shoal.core.wire.ErrorReport
import io.shoal.core.wire.Plan
import io.shoal.core.wire.encode
import java.io.File

/**
 * Error reports: what of an error leaves the device (`wire/SPEC.md`, 'Errors';
 * `edge_client/core/report.py`).
 */
internal object ErrorReports {
    /** Maximum number of bytes of an error report. */
    const val MOST_BYTES = 4 * 1024

    /** Minimum interval between error reports (seconds). */
    const val EVERY_S = 60.0

    /** Text of a release's problem if the policy does not permit the text of errors. */
    const val WITHHELD = "the owner does not permit the text of errors"

    private const val MESSAGE_BYTES = 500
    private const val LONGEST_NAME = 100
    private const val LONGEST_FRAME = 200

    /** Reasons of declines whose detail is the text of an error. */
    private val OF_ERRORS = setOf(DeclineReason.BUNDLE, DeclineReason.DATA, DeclineReason.FAILED)

    /** Return the report of an error in this part of the client, [what]. It never throws. */
    fun of(deviceId: String, what: String, error: Throwable, atS: Double, app: String): ErrorReport {
        val type = error.javaClass.name.substringAfterLast('.')
        return try {
            val message = error.message.orEmpty()
            val frames = error.stackTrace.reversed().map { "${it.fileName ?: it.className}:${maxOf(it.lineNumber, 0)} ${it.methodName}" }
            val report = ErrorReport(deviceId, atS, what, type, message, frames, BuildVersion.CLIENT, app, peakBytes(), memoryBytes())
            bounded(report, System.getProperty("user.home").orEmpty())
        } catch (_: Throwable) { // for instance because memory is lacking
            ErrorReport(deviceId, 0.0, what, type)
        }
    }

    /**
     * Return the report of a client that ended in the midst of a plan, without an error. [exit] is
     * the system's explanation, or empty.
     */
    fun ofKilled(deviceId: String, plan: Plan, atS: Double, app: String, exit: String): ErrorReport {
        val why = exit.ifEmpty { "it was killed (exit -9), usually for lack of memory, or it crashed" }
        val message = "the client ended while it worked on round ${plan.round}: $why"
        val report = ErrorReport(deviceId, atS, "Client ended", "Killed", message, emptyList(), BuildVersion.CLIENT, app, null, memoryBytes())
        return bounded(report, "")
    }

    /**
     * Return a report on printable lines, without the folder [home], and within [MOST_BYTES]. The
     * outermost lines of the traceback are left out first.
     */
    fun bounded(report: ErrorReport, home: String): ErrorReport {
        val message = if (home.length > 1) report.message.replace(home, "~") else report.message
        var short = report.copy(
            error = first(printable(report.error), LONGEST_NAME),
            message = firstBytes(printable(message)),
            frames = report.frames.takeLast(ErrorReport.MOST_FRAMES).map { first(printable(it), LONGEST_FRAME) },
        )
        while (short.frames.isNotEmpty() && encode(short).size > MOST_BYTES) short = short.copy(frames = short.frames.drop(1))
        return short
    }

    /**
     * Return the detail of a decline; empty if it is an error's text that must not be reported.
     */
    fun permittedDetail(reportErrors: Boolean, reason: DeclineReason, detail: String): String =
        if (reportErrors || reason !in OF_ERRORS) detail else ""

    /** Return the first [most] characters of a text. */
    private fun first(text: String, most: Int): String =
        if (text.codePointCount(0, text.length) <= most) text else text.substring(0, text.offsetByCodePoints(0, most))

    /** Return the first [MESSAGE_BYTES] of a text in UTF-8, without a part of a character. */
    private fun firstBytes(text: String): String {
        val bytes = text.toByteArray()
        var end = minOf(bytes.size, MESSAGE_BYTES)
        while (end < bytes.size && bytes[end].toInt() and 0xC0 == 0x80) end--
        return String(bytes, 0, end)
    }

    /** Return the largest memory that this process has taken (bytes), or null if unknown. */
    private fun peakBytes(): Long? = kibibytes("/proc/self/status", "VmHWM:")

    /** Return the memory of the device (bytes), or null if unknown. */
    private fun memoryBytes(): Long? = kibibytes("/proc/meminfo", "MemTotal:")

    private fun kibibytes(file: String, name: String): Long? = try {
        val line = File(file).readLines().firstOrNull { it.startsWith(name) }
        line?.removePrefix(name)?.trim()?.substringBefore(' ')?.toLongOrNull()?.times(1024)
    } catch (_: Exception) {
        null
    }
}
