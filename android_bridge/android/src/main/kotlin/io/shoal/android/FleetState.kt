package io.shoal.android

import java.util.concurrent.Executor

/** What a phone does for a fleet. Two states are equal if they say the same, so that a flow tells of each once. */
public sealed class FleetState {
    /** Nothing is left to do until a job is due. */
    public object Idle : FleetState()

    /** There is something to do, which a later job does. */
    public class Waiting(public val why: Why) : FleetState() {
        /** What it waits for. */
        public enum class Why {
            /** The broker cannot be reached. */
            NETWORK,

            /** Too little storage is free. */
            STORAGE,

            /** The phone is too warm. */
            HEAT,

            /** The phone has no windows yet. */
            WINDOWS,

            /** The phone is not enrolled yet. */
            ENROLMENT,

            /** Somebody who runs the fleet has to approve the phone. */
            APPROVAL,

            /** A job is running, or was ended by Android or by the clock: the next one goes on. */
            JOB,
        }
    }

    /** It trains: [step] of [of] steps of the plan are done. */
    public class Training(public val step: Long, public val of: Long) : FleetState()

    /** A finished update is on its way. */
    public object Uploading : FleetState()

    /** Nothing is done until somebody acts; [detail] says it in words, for a log. */
    public class Blocked(public val reason: Reason, public val detail: String) : FleetState() {
        /** What stands in the way. */
        public enum class Reason {
            /** Nobody has consented, or consent was withdrawn. */
            CONSENT,

            /** A setting cannot be used, or the app no longer has the class of its windows. */
            SETTINGS,

            /** The service does not know the token: is it complete, and of this service? */
            TOKEN_UNKNOWN,

            /** Another phone has used the token: each needs one of its own. */
            TOKEN_USED,

            /** The token's time is over. */
            TOKEN_EXPIRED,

            /** The token is for another id than the app gave, or another device has that id. */
            NAME_TAKEN,

            /** Who runs the fleet has banned this phone, or did not approve it. */
            BANNED,

            /** What answers is not the service that the token knows, or not of this fleet, or answers what cannot be used. */
            SERVICE,

            /** The service wants an attestation of this app and phone, and does not believe the one that it got, or got none. */
            ATTESTATION,

            /** The certificate has ended, or its key is gone from the Keystore: the phone needs another token. */
            CERTIFICATE,

            /** The job failed, by a defect or with windows that cannot be used. */
            FAILED,
        }
    }

    /** The text that [parse] reads; of states that outlive a process. */
    internal fun write(): String = when (this) {
        is Idle -> "idle"
        is Waiting -> "waiting ${why.name}"
        is Blocked -> "blocked ${reason.name} $detail"
        is Training, is Uploading -> "waiting ${Waiting.Why.JOB.name}"
    }

    override fun equals(other: Any?): Boolean = other is FleetState && toString() == other.toString()

    override fun hashCode(): Int = toString().hashCode()

    override fun toString(): String = when (this) {
        is Training -> "training $step/$of"
        is Uploading -> "uploading"
        else -> write()
    }

    internal companion object {
        /** Reads what [write] wrote; what is no such text is [Idle]. */
        fun parse(text: String): FleetState {
            val (kind, name, detail) = text.split(" ", limit = 3) + listOf("", "")
            return when (kind) {
                "waiting" -> Waiting.Why.values().firstOrNull { it.name == name }?.let { Waiting(it) }
                "blocked" -> Blocked.Reason.values().firstOrNull { it.name == name }?.let { Blocked(it, detail) }
                else -> null
            } ?: Idle
        }
    }
}

/** Is told of each state that a [Fleet] comes into. */
public fun interface FleetListener {
    /** The state is another one from now on. */
    public fun onState(state: FleetState)
}

/** A state, and who is told of the next, as [shown] shows it. */
internal class States(initial: FleetState, private val shown: (FleetState) -> FleetState = { it }) {
    private val observers = Observers<FleetState>()

    @Volatile
    var now: FleetState = initial
        private set

    fun set(state: FleetState) {
        now = state
        refresh()
    }

    /** The same state may show as another one now. */
    fun refresh(): Unit = observers.tell(shown(now))

    /** Tells [listener] of the state as it is now, and of each that follows. */
    fun add(listener: FleetListener, executor: Executor): Unit = observers.add(listener, executor, shown(now), listener::onState)

    fun remove(listener: FleetListener): Unit = observers.remove(listener)
}
