package io.shoal.core

import io.shoal.core.wire.Plan

/** A finished update that is not yet acknowledged; its bytes lie in the storage. */
public data class Pending(val runId: String, val round: Long, val deadlineAtS: Double = 0.0)

/**
 * A device's memory between messages. [answered] is the last round of [runId] whose update was acknowledged or refused; where it was
 * refused, or the plan could not be carried out, [givenUpS] is the deadline of that plan, and a later one of the same round is tried again.
 */
public data class Session(
    val runId: String = "",
    val answered: Long = 0,
    val givenUpS: Double = 0.0,
    val plan: Plan? = null,
    val pending: Pending? = null,
    val versions: Map<String, Long> = emptyMap(),
    val finalModel: String = "",
    val finalBundle: String = "",
    val finished: Boolean = false,
)
