package io.shoal.core.wire

import io.shoal.core.InternalShoalApi
import java.util.Locale

/**
 * Message of the protocol (`wire/messages.py`, `wire/SPEC.md`). [type] identifies it on the wire.
 */
@InternalShoalApi
public sealed interface Message {
    /** Value of the field `type`. */
    public val type: String
}

/** Message on a device's `reply` topic. */
internal sealed interface Reply : Message {
    /** Device that it is for. */
    val deviceId: String
}

/** Sums over the examples of a graph. Means are computed only for display. */
@InternalShoalApi
public data class Metrics(val numExamples: Long = 0, val lossSum: Double = 0.0, val numCorrect: Long = 0)

/**
 * Check-in: from a device to the aggregator, with its facts. What is null is unknown to the device,
 * or kept private.
 *
 * @property bundle digest of the loaded bundle, or empty
 * @property policy rules of the owner, so that the aggregator requests only what they permit
 * @property moved true if the data have moved since the last survey
 */
internal data class CheckIn(
    val deviceId: String,
    val numTrain: Long,
    val numTest: Long,
    val bundle: String = "",
    val client: String = "",
    val runtime: String = "",
    val batteryPercent: Double? = null,
    val unmetered: Boolean? = null,
    val policy: Policy? = null,
    val hardware: String = "",
    /** Storage that the client may still use (bytes). */
    val freeBytes: Long? = null,
    val temperatureC: Double? = null,
    /** True if the device is connected to power. */
    val charging: Boolean? = null,
    /** True if nothing else needs its processor much, or nobody uses it. */
    val idle: Boolean? = null,
    /** Number of training windows per class, if the policy permits to tell it. */
    val classes: List<Long>? = null,
    val moved: Boolean = false,
    /** Encodings of updates that it supports besides float32. Some of them may be unknown here. */
    val encodings: List<String> = emptyList(),
    /** Number of windows without labels. */
    val numUnlabelled: Long = 0,
    /** Digests of the models of which the device holds an intact personal model. */
    val personalModels: List<String>? = null,
    /** Version of the protocol that the client speaks. */
    val protocol: String = "",
    /** Version of the app that the client is a part of. */
    val app: String = "",
    /** Number of this start of the client, counted in its storage; 0 if it is not counted. */
    val start: Long = 0,
    /** Random number of this start; 0 if it has none. */
    val instance: Long = 0,
) : Message {
    override val type: String get() = "check-in"

    internal companion object {
        /** Maximum number of encodings in a check-in. */
        const val MOST_ENCODINGS = 16

        /** Maximum number of classes in a check-in. */
        const val MOST_CLASSES = 1000

        /** Maximum number of personal models in a check-in. */
        const val MOST_HELD = 16
    }
}

/**
 * Error report: from a device to the aggregator, about the last error that the device survived, or
 * that ended its client. It is sent at once, at most once a minute, and after each check-in, if the
 * policy permits it.
 *
 * @property atS time of the error (Unix time, seconds), as well as the device knows it
 * @property what part of the client that failed
 * @property error type of the error
 * @property frames lines of the traceback, outermost first: `FILE:LINE FUNCTION`, without folders
 * @property client client that had the error, with its version
 * @property app version of the app at that time
 * @property peakBytes largest memory that the client has taken since its start; null if unknown
 * @property memoryBytes memory that the client could take at most; null if unknown
 */
@InternalShoalApi
public data class ErrorReport(
    val deviceId: String,
    val atS: Double,
    val what: String,
    val error: String,
    val message: String = "",
    val frames: List<String> = emptyList(),
    val client: String = "",
    val app: String = "",
    val peakBytes: Long? = null,
    val memoryBytes: Long? = null,
) : Message {
    override val type: String get() = "error"

    internal companion object {
        /** Maximum number of lines of a traceback. */
        const val MOST_FRAMES = 32
    }
}

/**
 * Request: from a device to the aggregator, to publish a blob, or a piece of one, which it lacks.
 */
internal data class Fetch(val deviceId: String, val digest: String) : Message {
    override val type: String get() = "fetch"
}

/**
 * List of pieces: from the aggregator to a device, signed, in place of a large blob; and part of an
 * [UpdateOffer]. The bytes with the SHA-256 [digest] are these [pieces], named by their own
 * SHA-256, in order. Each has [pieceBytes] except the last, which has the rest.
 */
@InternalShoalApi
public data class Pieces(val digest: String, val numBytes: Long, val pieceBytes: Long, val pieces: List<String>) : Message {
    override val type: String get() = "pieces"
}

/**
 * Offer: from a device to the aggregator, of an update of this round that is too large to be sent
 * whole. The aggregator answers which pieces it wants.
 */
internal data class UpdateOffer(val deviceId: String, val runId: String, val round: Long, val pieces: Pieces) : Message {
    override val type: String get() = "offer"
}

/**
 * Piece: from a device to the aggregator, of the update with this digest. Its bytes follow after a
 * line feed.
 */
internal data class Piece(val deviceId: String, val update: String, val index: Int) : Message {
    override val type: String get() = "piece"
}

/**
 * Request: from the aggregator to a device, signed, to send these pieces of the offered update
 * next.
 */
internal data class Want(val deviceId: String, val update: String, val pieces: List<Int>) : Message {
    override val type: String get() = "want"
}

/**
 * Heartbeat: on the device's status topic, retained, at least every minute. The broker publishes
 * online=false as the device's will.
 */
internal data class DeviceStatus(
    val deviceId: String,
    val online: Boolean,
    /** 128 random bits in hexadecimal digits if the owner has withdrawn consent, else empty. */
    val withdrawn: String = "",
    /** Device's own clock (Unix time) at the time of writing; 0 if it is not reported. */
    val atS: Double = 0.0,
) : Message {
    override val type: String get() = "status"
}

/**
 * Update: from a device to the aggregator, the result of a plan. The tensors travel beside it in
 * the same payload. The update of a plan that ends with a [Mask] has a [share], and zeros in place of
 * all counts, metrics and times of its data.
 */
internal data class Update(
    val runId: String,
    val epoch: Long,
    val round: Long,
    val attempt: Long,
    val deviceId: String,
    val model: String,
    val numTrain: Long,
    val numSteps: Long,
    val evaluated: Metrics,
    val trained: Metrics,
    val bytesReceived: Long = 0,
    val trainS: Double = 0.0,
    val share: SignedShare? = null,
    val node: String = "",
) : Message {
    override val type: String get() = "update"
}

/** Reason of a decline (`wire/SPEC.md`, 'Declines'); on the wire in lower case. */
@InternalShoalApi
public enum class DeclineReason {
    STALE,
    EXPIRED,
    OUTDATED,
    POLICY,
    BUNDLE,
    DATA,
    FAILED,
    QUARANTINED,
    ;

    /** Text of the reason in a message. */
    public val text: String get() = name.lowercase(Locale.ROOT)
}

/**
 * Decline: from a device to the aggregator, which does not carry out the plan of this round.
 * [proof] belongs to the reason `stale`: the signed plan of a greater epoch that the device has, as
 * it came.
 */
internal data class Decline(
    val runId: String,
    val epoch: Long,
    val round: Long,
    val attempt: Long,
    val deviceId: String,
    val reason: DeclineReason,
    val detail: String,
    val proof: String = "",
) : Message {
    override val type: String get() = "decline"
}

/** Identity of a plan, which a decline repeats. */
internal data class PlanHead(val deviceId: String, val runId: String, val epoch: Long, val round: Long, val attempt: Long)

/**
 * Plan: from the aggregator to a device, signed.
 *
 * @property model blob to start from
 * @property seed seed of the order of the batches
 * @property deadlineAtS time after which updates are refused (the aggregator's clock, Unix time in
 *   seconds)
 * @property epoch number of the aggregator's start
 * @property attempt number of the assignment, greater than that of every earlier plan of the device
 */
@InternalShoalApi
public data class Plan(
    val runId: String,
    val epoch: Long,
    val round: Long,
    val attempt: Long,
    val deviceId: String,
    val bundle: String,
    val model: String,
    val verbs: List<Verb>,
    val seed: Long,
    val deadlineAtS: Double,
    /** Encoding of the update: float32, or int8 if the device supports it. */
    val encoding: String = "float32",
) : Message {
    override val type: String get() = "plan"
}

/**
 * Acknowledgement: from the aggregator to a device, signed. The update with these bytes is safe, or
 * no longer needed; the device deletes it.
 */
internal data class Acknowledge(override val deviceId: String, val update: String) : Reply {
    override val type: String get() = "acknowledge"
}

/**
 * Refusal: from the aggregator to a device, signed. [about] is the kind of the refused message's
 * topic. If it was an update, [update] is the digest of its bytes, and the device deletes it.
 * [instance] is that of the check-in of a second device; a device with this instance ends.
 */
internal data class Refuse(
    override val deviceId: String,
    val reason: String,
    val detail: String,
    val about: String = "",
    val update: String = "",
    val instance: Long = 0,
) : Reply {
    override val type: String get() = "refuse"
}

/**
 * Busy: from the aggregator to a device, signed. The update with these bytes cannot be accepted
 * now; the device sends it again after [retryS] seconds.
 */
internal data class Busy(override val deviceId: String, val update: String, val retryS: Double) : Reply {
    override val type: String get() = "busy"
}

/**
 * Report: from a device to the aggregator, about its releases; after each release that came, and
 * after each check-in.
 *
 * @property number release in use, 0 if there is none
 * @property offered number of the last offer that came, by a release or by a finished run
 * @property problem reason why [offered] is not in use, or empty
 * @property evaluated sums over the windows that the device holds back, with the offered release
 * @property before the sums with the release that was in use before
 * @property failures number of failed predictions since the release in use was taken up
 * @property alone reason why the offered release is used without a personal model, or empty
 * @property model digest of the model in use, or empty
 */
internal data class InUse(
    val deviceId: String,
    val number: Long = 0,
    val offered: Long = 0,
    val problem: String = "",
    val evaluated: Metrics = Metrics(),
    val before: Metrics = Metrics(),
    val latencyMs: Double = 0.0,
    val failures: Long = 0,
    val alone: String = "",
    val model: String = "",
) : Message {
    override val type: String get() = "in-use"
}

/**
 * Release: from the aggregator to a device, signed, retained on the device's own topic. It is the
 * model to use.
 *
 * @property number number that only grows: a device accepts no smaller one than its last
 * @property runId run that trained it, whose private tensors the device may have
 * @property group name of its group
 */
internal data class Release(
    val deviceId: String,
    val epoch: Long,
    val number: Long,
    val group: String,
    val runId: String,
    val bundle: String,
    val model: String,
) : Message {
    override val type: String get() = "release"
}

/**
 * Finish: from the aggregator to a device, signed. The run is over, and [model] is the one to use
 * from now on, unless [releases] is true: then models to use come as a [Release].
 *
 * @property number number of the offer, from the same series as the numbers of releases; 0 with
 *   [releases]
 */
internal data class Finish(
    override val deviceId: String,
    val runId: String,
    val epoch: Long,
    val bundle: String,
    val model: String,
    val releases: Boolean = false,
    val number: Long = 0,
) : Reply {
    override val type: String get() = "finish"
}

/**
 * Status: on the fleet's aggregator topic, retained and signed, every few seconds.
 *
 * @property bootId id of the aggregator's start; a new one asks every device to check in again
 * @property atS aggregator's clock when it was written (Unix time, seconds)
 * @property paused reason why it accepts no updates now, or empty
 */
internal data class AggregatorStatus(
    val online: Boolean,
    val bootId: String,
    val epoch: Long,
    val atS: Double,
    val runId: String = "",
    val paused: String = "",
) : Message {
    override val type: String get() = "aggregator"
}

/**
 * Voucher: the word of a trusted key that [key] (an Ed25519 public key in hexadecimal digits) may
 * speak for a fleet until [notAfterS] (Unix time).
 */
internal data class Voucher(val fleet: String, val key: String, val notAfterS: Double) : Message {
    override val type: String get() = "voucher"
}
