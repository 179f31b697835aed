package io.shoal.core

import io.shoal.core.wire.DeclineReason
import io.shoal.core.wire.ErrorReport
import io.shoal.core.wire.Plan

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
 * @param released number of the last release that came; [releasedEpoch] is its epoch
 * @param personalModels personal models of the device
 * @param reached furthest point of the work, at which [tries] was last reset (number of runs of
 *   graphs)
 * @param begun true if work on the plan began and came to no orderly stop
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
    val begun: Boolean = false,
    val error: ErrorReport? = null,
)
