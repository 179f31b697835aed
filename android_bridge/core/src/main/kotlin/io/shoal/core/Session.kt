package io.shoal.core

import io.shoal.core.wire.DeclineReason
import io.shoal.core.wire.ErrorReport
import io.shoal.core.wire.Plan
import io.shoal.core.wire.Refuse
import java.io.IOException
import java.security.SecureRandom

/** State of the last plan that a device accepted. */
@InternalShoalApi
public enum class Stage {
    /** The device works on it, or waits for its blobs. */
    WORKING,

    /** Its update waits for an answer. */
    PENDING,

    /** It was declined. */
    DECLINED,

    /** Its update was answered, or there is no plan. */
    ANSWERED,
}

/**
 * Start of the client, by which the service tells two devices of one identity apart
 * (`edge_client/core/session.py`). Starts with one storage have growing numbers. A copy of the
 * storage goes on from the same number with another random one.
 *
 * @param number number of the start, from 1; 0 for a start that is not counted and never refused
 * @param instance random number of the start
 * @param refused true if the service has refused this start as that of a second device
 */
@InternalShoalApi
public data class Start(val number: Long = 0, val instance: Long = 0, val refused: Boolean = false) {
    /** Return the start after this one. */
    internal fun next(instance: Long) = Start(number + 1, instance)

    /** Return true if a reply refuses this start as that of a second device. */
    internal fun isMeantBy(reply: Refuse): Boolean =
        reply.reason == "second-device" && instance != 0L && reply.instance == instance

    internal companion object {
        /** Error of a client whose start is [refused]. */
        const val SECOND_DEVICE = "another device uses this identity, and the service works with that one: was this device's storage copied or " +
            "restored? Enrol this device anew, with an empty storage"

        /**
         * Count a start of the client and return it. If it cannot be stored, the last start goes on:
         * the service must never see two starts of one device under one number. [instance] is the
         * start's random number.
         */
        fun begin(storage: Storage, log: Log, instance: Long = RANDOM.nextLong().and(MOST_INSTANCE - 1) + 1): Start {
            val last = storage.start()
            val start = last.next(instance)
            return try {
                storage.saveStart(start)
                start
            } catch (error: IOException) {
                log.write(Log.Level.WARNING, "Start of the client not counted: ${describe(error)}")
                if (last.number > 0) last else Start()
            }
        }

        /** Last start by a damaged file. The next one is not counted, so that the device is not refused. */
        val DAMAGED = Start(-1)

        private val RANDOM = SecureRandom()
        private const val MOST_INSTANCE = 1L shl 53
    }
}

/**
 * Memory of a device between messages (`edge_client/core/session.py`).
 *
 * @param plan last plan that was accepted
 * @param planText text of that plan as it came, with its signatures
 * @param tries number of starts of work on it that did not end, since its last progress
 * @param update digest of the pending update; its bytes are in the storage
 * @param reason reason why the plan was declined; [detail] is the explanation
 * @param versions newest version of each bundle that was used, by the bundle's name
 * @param offer last model that was offered, with its outcome
 * @param offeredEpoch greatest epoch of a `Finish`
 * @param released number of the last offer that came, by a release or by a `Finish`
 * @param releasedEpoch epoch of the last release that came
 * @param personalModels personal models of the device
 * @param reached furthest point of the work, at which [tries] was last reset (number of runs of
 *   graphs)
 * @param underWay true if work on the plan began and came to no orderly stop
 * @param error report of the last error
 */
@InternalShoalApi
public data class Session(
    val plan: Plan? = null,
    val planText: String = "",
    val stage: Stage = Stage.ANSWERED,
    val tries: Int = 0,
    val update: String = "",
    val reason: DeclineReason? = null,
    val detail: String = "",
    val versions: Map<String, Long> = emptyMap(),
    val offer: ModelOffer? = null,
    val offeredEpoch: Long = 0,
    val released: Long = 0,
    val releasedEpoch: Long = 0,
    val personalModels: List<PersonalModel> = emptyList(),
    val reached: Long = 0,
    val underWay: Boolean = false,
    val error: ErrorReport? = null,
)
