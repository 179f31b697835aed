package io.shoal.core.wire

import io.shoal.core.InternalShoalApi
import java.util.Locale

/** One message of the protocol (`wire/messages.py`, `wire/SPEC.md`); [type] says which on the wire. */
@InternalShoalApi
public sealed interface Message {
    /** The value of the field `type`. */
    public val type: String
}

/** What an aggregator writes to a device's `reply` topic. */
internal sealed interface Reply : Message {
    /** The device that it is for. */
    val deviceId: String
}

/** Sums over the examples a graph saw; a mean is made only where it is shown. */
@InternalShoalApi
public data class Metrics(val numExamples: Long = 0, val lossSum: Double = 0.0, val numCorrect: Long = 0)

/**
 * Device to aggregator: here I am, this is what I have. [bundle] is the digest of the bundle it has loaded, or empty; [policy] is what its
 * owner permits, so that the aggregator need not ask in vain. [moved]: its data are no longer those of its last survey. What is null is not
 * known to the device, or not told.
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
    /** Storage that the client may still take. */
    val freeBytes: Long? = null,
    val temperatureC: Double? = null,
    /** Whether the device runs on outside power. */
    val charging: Boolean? = null,
    /** Whether nothing else wants much of its processor, or nobody uses it. */
    val idle: Boolean? = null,
    /** By class number, how many training windows there are; only where the policy permits it. */
    val classes: List<Long>? = null,
    val moved: Boolean = false,
    /** The encodings of updates that it can make beside float32; some of them may be unknown here. */
    val encodings: List<String> = emptyList(),
    /** Windows that nobody has labelled. */
    val numUnlabelled: Long = 0,
    /** The models, by their digests, of which it holds what it has kept: what is damaged does not count. */
    val kept: List<String>? = null,
) : Message {
    override val type: String get() = "check-in"

    internal companion object {
        /** Encodings of which a device says that it has them, at most. */
        const val MOST_ENCODINGS = 16

        /** Classes of which a device tells how many windows it has, at most. */
        const val MOST_CLASSES = 1000

        /** Models of which a device says that it has kept something, at most. */
        const val MOST_HELD = 16
    }
}

/** Device to aggregator: publish this blob, or this piece of one (again), I lack it. */
internal data class Fetch(val deviceId: String, val digest: String) : Message {
    override val type: String get() = "fetch"
}

/**
 * Aggregator to device, signed: what is retained in place of a large blob; and part of an [UpdateOffer]. The bytes with the SHA-256 [digest] are
 * these [pieces], by their own SHA-256, in order. Each has [pieceBytes] but for the last, which has the rest.
 */
@InternalShoalApi
public data class Pieces(val digest: String, val numBytes: Long, val pieceBytes: Long, val pieces: List<String>) : Message {
    override val type: String get() = "pieces"
}

/** Device to aggregator: an update that is too large to be sent whole, of this round. The aggregator says which pieces it wants. */
internal data class UpdateOffer(val deviceId: String, val runId: String, val round: Long, val pieces: Pieces) : Message {
    override val type: String get() = "offer"
}

/** Device to aggregator: a piece of the update with this digest. Its bytes follow after a line feed. */
internal data class Piece(val deviceId: String, val update: String, val index: Int) : Message {
    override val type: String get() = "piece"
}

/** Aggregator to device, signed: these pieces of the update that was offered, by index, are to be sent next. */
internal data class Want(val deviceId: String, val update: String, val pieces: List<Int>) : Message {
    override val type: String get() = "want"
}

/** On the device's status topic, retained, at least every minute; the broker publishes online=false as the device's last will. */
internal data class DeviceStatus(
    val deviceId: String,
    val online: Boolean,
    /** The owner agrees no longer: 128 random bits in hexadecimal digits; else empty. */
    val withdrawn: String = "",
) : Message {
    override val type: String get() = "status"
}

/** Device to aggregator: the result of a plan; the tensors travel beside it in the same payload. */
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
) : Message {
    override val type: String get() = "update"
}

/** Why a device does not carry out a plan (`wire/SPEC.md`, 'Declines'); on the wire in lower case. */
@InternalShoalApi
public enum class DeclineReason {
    STALE,
    EXPIRED,
    POLICY,
    BUNDLE,
    DATA,
    FAILED,
    QUARANTINED,
    ;

    /** As it stands in a message. */
    public val text: String get() = name.lowercase(Locale.ROOT)
}

/**
 * Device to aggregator: the plan of this round is not carried out here, and why. [proof] goes with the reason `stale`: the signed plan of a
 * greater epoch that the device holds, as it came.
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

/**
 * Aggregator to device, signed: what to do in this round. [model] is the blob to start from, [seed] makes the order of the batches
 * repeatable, after [deadlineAtS] (the aggregator's clock, Unix time in seconds) updates are refused. [epoch] says which start of the
 * aggregator speaks; [attempt] is the number of the assignment, greater than that of every plan that the device was given before.
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
    /** How the update is to hold its change: float32, or int8 for a device that has said that it can make it. */
    val encoding: String = "float32",
) : Message {
    override val type: String get() = "plan"
}

/** Aggregator to device, signed: the update with these bytes is safe, or no longer needed; delete it. */
internal data class Acknowledge(override val deviceId: String, val update: String) : Reply {
    override val type: String get() = "acknowledge"
}

/**
 * Aggregator to device, signed: not accepted, and why. [about] is the kind of the topic it came on; [update], where that was an update, the
 * digest of its bytes. The device deletes that update.
 */
internal data class Refuse(
    override val deviceId: String,
    val reason: String,
    val detail: String,
    val about: String = "",
    val update: String = "",
) : Reply {
    override val type: String get() = "refuse"
}

/** Aggregator to device, signed: the update with these bytes cannot be taken now; send it again after [retryS] seconds. */
internal data class Busy(override val deviceId: String, val update: String, val retryS: Double) : Reply {
    override val type: String get() = "busy"
}

/**
 * Device to aggregator: which release answers predictions here; after each release that came, and after each check-in. [number] is the one
 * in use, 0 if none is; [offered] the last that came. If that is not in use, [problem] says why. [evaluated] and [before] are sums over the
 * windows that the device holds back, with the release offered and with the one that was in use; [failures] counts predictions that failed
 * since the one in use was taken up. [alone] says why the release offered is used without what the device has kept, if it is.
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
) : Message {
    override val type: String get() = "in-use"
}

/**
 * Aggregator to device, signed, retained on the device's own topic: the model to use. [number] only grows: a device takes no smaller one
 * than it was given. [runId] is the run that trained it, of which the device may keep private tensors; [group] what its group is called.
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
 * Aggregator to device, signed: the run is over; [model] is the one to use from now on. With [releases] it is not: models to use come as a
 * [Release].
 */
internal data class Finish(
    override val deviceId: String,
    val runId: String,
    val epoch: Long,
    val bundle: String,
    val model: String,
    val releases: Boolean = false,
) : Reply {
    override val type: String get() = "finish"
}

/**
 * On the fleet's aggregator topic, retained and signed, every few seconds. A new [bootId] asks every device to check in again. [atS] is the
 * aggregator's clock (Unix time, seconds) when it was written; [paused] says why it takes no updates now, or is empty.
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

/** A trusted key vouches that [key] (an Ed25519 public key in hexadecimal digits) may speak for a fleet until [notAfterS] (Unix time). */
internal data class Voucher(val fleet: String, val key: String, val notAfterS: Double) : Message {
    override val type: String get() = "voucher"
}
