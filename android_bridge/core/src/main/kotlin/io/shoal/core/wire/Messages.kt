package io.shoal.core.wire

/** One message of the protocol (`wire/messages.py`, `wire/SPEC.md`); [type] says which on the wire. */
public sealed interface Message {
    /** The value of the field `type`. */
    public val type: String
}

/** What an aggregator writes to a device's `reply` topic. */
public sealed interface Reply : Message

/** Sums over the examples a graph saw; a mean is made only where it is shown. */
public data class Metrics(val numExamples: Long = 0, val lossSum: Double = 0.0, val numCorrect: Long = 0)

/** Device to aggregator: here I am, this is what I have. [bundle] is the digest of the bundle it has loaded, or empty. */
public data class CheckIn(
    val deviceId: String,
    val numTrain: Long,
    val numTest: Long,
    val bundle: String = "",
    val client: String = "",
    val runtime: String = "",
    val batteryPercent: Double? = null,
    val unmetered: Boolean? = null,
) : Message {
    override val type: String get() = "check-in"
}

/** Device to aggregator: publish this blob (again), I lack it. */
public data class Fetch(val deviceId: String, val digest: String) : Message {
    override val type: String get() = "fetch"
}

/** On the device's status topic, retained; the broker publishes online=false as the device's last will. */
public data class DeviceStatus(val deviceId: String, val online: Boolean) : Message {
    override val type: String get() = "status"
}

/** Device to aggregator: the result of a plan; the tensors travel beside it in the same payload. */
public data class Update(
    val runId: String,
    val round: Long,
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

/** Device to aggregator: the plan of this round cannot be carried out here, and why. */
public data class Decline(val runId: String, val round: Long, val deviceId: String, val detail: String) : Message {
    override val type: String get() = "decline"
}

/**
 * Aggregator to device: what to do in this round. [model] is the blob to start from, [seed] makes the order of the batches repeatable,
 * after [deadlineAtS] (Unix time, seconds) updates are refused.
 */
public data class Plan(
    val runId: String,
    val round: Long,
    val deviceId: String,
    val bundle: String,
    val model: String,
    val verbs: List<Verb>,
    val seed: Long,
    val deadlineAtS: Double,
) : Message {
    override val type: String get() = "plan"
}

/** Aggregator to device: your update of this round is safe; delete it. */
public data class Acknowledge(val runId: String, val round: Long) : Reply {
    override val type: String get() = "acknowledge"
}

/**
 * Aggregator to device: not accepted, and why. A refused update is deleted. [runId] and [round] are empty and 0 where what came could not
 * be read so far; [about] is the kind of its topic.
 */
public data class Refuse(
    val reason: String,
    val detail: String,
    val runId: String = "",
    val round: Long = 0,
    val about: String = "",
) : Reply {
    override val type: String get() = "refuse"
}

/** Aggregator to device: the run is over; [model] is the one to use from now on. */
public data class Finish(val runId: String, val bundle: String, val model: String) : Reply {
    override val type: String get() = "finish"
}

/** On the fleet's aggregator topic, retained. A new [bootId] asks every device to check in again. */
public data class AggregatorStatus(val online: Boolean, val bootId: String, val runId: String = "") : Message {
    override val type: String get() = "aggregator"
}
