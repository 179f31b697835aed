package io.shoal.android

import io.shoal.core.Log
import io.shoal.core.ShoalException
import java.util.concurrent.Executor

/**
 * State of a phone's work for a fleet. Two states with the same content are equal, so that a flow
 * emits each once.
 */
public sealed class FleetState {
    /** There is nothing to do until the next job. */
    public object Idle : FleetState()

    /** There is work for a later job. */
    public class Waiting(public val reason: Reason) : FleetState() {
        /** Reason to wait. */
        public enum class Reason {
            /** The broker cannot be reached. */
            NETWORK,

            /** Too little storage is free, or a file cannot be read or written. */
            STORAGE,

            /** The phone is too warm. */
            HEAT,

            /** The phone has no windows yet. */
            WINDOWS,

            /** Nobody has unlocked the phone since it started, so its files cannot be read. */
            UNLOCK,

            /** The phone is not enrolled yet; without a token it waits for [FleetBuilder.enrol] with one. */
            ENROLMENT,

            /** An operator of the fleet has to approve the phone. */
            APPROVAL,

            /**
             * A job is running, or was ended by Android or by its time limit; the next one
             * continues.
             */
            JOB,
        }
    }

    /** Training: [step] of [of] steps of the plan are finished. */
    public class Training(public val step: Long, public val of: Long) : FleetState()

    /** A finished update is being sent. */
    public object Uploading : FleetState()

    /** Nothing happens until somebody acts. [detail] is an explanation for a log. */
    public class Blocked(public val reason: Reason, public val detail: String) : FleetState() {
        /** Obstacle. */
        public enum class Reason {
            /** There is no consent, or it was withdrawn. */
            CONSENT,

            /** A setting cannot be used, or the app lacks the class of its windows. */
            SETTINGS,

            /** The service does not know the token. It may be incomplete, or of another service. */
            TOKEN_UNKNOWN,

            /** Another phone has used the token; each phone needs its own. */
            TOKEN_USED,

            /** The token has expired. */
            TOKEN_EXPIRED,

            /** The token is for another id than the app set, or another device has that id. */
            NAME_TAKEN,

            /** An operator has banned this phone, or did not approve it. */
            BANNED,

            /**
             * Another service answers than that of the token or this fleet, or its answer cannot be
             * used.
             */
            SERVICE,

            /**
             * The service requires an attestation of this app and phone, and got none, or does not
             * believe it.
             */
            ATTESTATION,

            /**
             * The certificate has expired, or its key is gone from the Keystore: the phone needs
             * another token.
             */
            CERTIFICATE,

            /** ExecuTorch does not run on this phone, for example on one of 32 bits. */
            UNSUPPORTED,

            /** The job failed by a defect, or its windows cannot be used. */
            FAILED,
        }
    }

    /** Return the text that [parse] reads. States that do not outlive a process become others. */
    internal fun write(): String = when (this) {
        is Idle -> "idle"
        is Waiting -> "waiting ${reason.name}"
        is Blocked -> "blocked ${reason.name} $detail"
        is Training, is Uploading -> "waiting ${Waiting.Reason.JOB.name}"
    }

    override fun equals(other: Any?): Boolean = other is FleetState && toString() == other.toString()

    override fun hashCode(): Int = toString().hashCode()

    override fun toString(): String = when (this) {
        is Training -> "training $step/$of"
        is Uploading -> "uploading"
        else -> write()
    }

    internal companion object {
        /** Parse the output of [write]. Other text becomes [Idle]. */
        fun parse(text: String): FleetState {
            val (kind, name, detail) = text.split(" ", limit = 3) + listOf("", "")
            return when (kind) {
                "waiting" -> Waiting.Reason.values().firstOrNull { it.name == name }?.let { Waiting(it) }
                "blocked" -> Blocked.Reason.values().firstOrNull { it.name == name }?.let { Blocked(it, detail) }
                else -> null
            } ?: Idle
        }
    }
}

/** Listener for the states of a [Fleet]. What it throws becomes a line of the log. */
public fun interface FleetListener {
    /** Called when the state has changed. */
    @Throws(ShoalException::class)
    public fun onState(state: FleetState)
}

/** State and its listeners, who get it as [shown] converts it; where it need not, it does not wait for the stored one. */
internal class States(private val stored: Stored<FleetState>, private val shown: (() -> FleetState) -> FleetState, log: Log = LogcatLog) {
    private val observers = Observers<FleetState>(log)

    val now: FleetState get() = stored.value

    fun set(state: FleetState) {
        stored.value = state
        refresh()
    }

    /** Call the listeners again, since the same state may be shown as another one now. */
    fun refresh(): Unit = observers.tell(shown { now })

    /** Call [listener] with the current state, and with each one that follows. */
    fun add(listener: FleetListener, executor: Executor): Unit = observers.add(listener, executor, shown { now }, listener::onState)

    fun remove(listener: FleetListener): Unit = observers.remove(listener)
}
