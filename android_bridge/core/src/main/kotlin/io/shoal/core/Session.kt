package io.shoal.core

import io.shoal.core.wire.DeclineReason
import io.shoal.core.wire.Plan

/** How far a device is with the last plan that it took. */
@InternalShoalApi
public enum class Stage {
    /** It works on it, or waits for what it needs. */
    WORKING,

    /** Its update awaits an answer. */
    PENDING,

    /** It was declined. */
    DECLINED,

    /** Its update was answered, or nothing is to be done. */
    ANSWERED,
}

/**
 * A device's memory between messages (`edge_client/core/session.py`).
 *
 * @param plan the last plan that was taken
 * @param taken that plan as it came, with its signatures
 * @param tries how often work on it was started and did not end
 * @param update the pending update's digest; its bytes lie in the storage
 * @param reason why the plan was declined; [detail] says it in words
 * @param versions by name, the newest version of a bundle that was used
 * @param offer the last model that was offered, and what became of it
 * @param offeredEpoch the greatest epoch of a `Finish`
 * @param released the number of the last release that was given; [releasedEpoch] is the epoch that it came from
 * @param kept what the device has kept, of which models
 * @param reached how far work on the plan came: how often a graph had been run for it at the last checkpoint for which [tries] was set back
 */
@InternalShoalApi
public data class Session(
    val plan: Plan? = null,
    val taken: String = "",
    val stage: Stage = Stage.ANSWERED,
    val tries: Int = 0,
    val update: String = "",
    val reason: DeclineReason? = null,
    val detail: String = "",
    val versions: Map<String, Long> = emptyMap(),
    val offer: Offer? = null,
    val offeredEpoch: Long = 0,
    val released: Long = 0,
    val releasedEpoch: Long = 0,
    val kept: List<Kept> = emptyList(),
    val reached: Long = 0,
)
