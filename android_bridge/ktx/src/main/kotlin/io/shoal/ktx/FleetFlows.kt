package io.shoal.ktx

import io.shoal.android.Fleet
import io.shoal.android.FleetListener
import io.shoal.android.FleetState
import io.shoal.android.ModelInfo
import io.shoal.android.ModelListener
import io.shoal.android.Prediction
import io.shoal.android.RoundListener
import io.shoal.android.RoundMetrics
import io.shoal.core.ShoalException
import io.shoal.core.Tensor
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.channels.awaitClose
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.buffer
import kotlinx.coroutines.flow.callbackFlow
import kotlinx.coroutines.withContext
import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.Executor

private val FLOWS = ConcurrentHashMap<Fleet, FleetFlows>()

/** Flows of the fleet; the same ones each time. */
public val Fleet.flows: FleetFlows get() = FLOWS.computeIfAbsent(this) { FleetFlows(it) }

/** State, model and rounds of a fleet as flows. They may be used on the main thread, and end with the process. */
public class FleetFlows internal constructor(fleet: Fleet) {
    private val states = MutableStateFlow(fleet.state)
    private val models = MutableStateFlow<ModelInfo?>(null)

    /** State of the phone's work for the fleet. */
    public val state: StateFlow<FleetState> = states.asStateFlow()

    /** Model that answers; null until it was read, or before the first one, and never again. */
    public val model: StateFlow<ModelInfo?> = models.asStateFlow()

    /**
     * Rounds that the phone carries out from the start of the collection on. A slow collector
     * misses none.
     */
    public val metrics: Flow<RoundMetrics> = callbackFlow {
        val listener = RoundListener { trySend(it) }
        fleet.addRoundListener(listener, AT_ONCE)
        awaitClose { fleet.removeRoundListener(listener) }
    }.buffer(Channel.UNLIMITED)

    init {
        fleet.addListener(FleetListener { states.value = it }, AT_ONCE)
        fleet.addModelListener(ModelListener { models.value = it }, AT_ONCE)
    }

    private companion object {
        val AT_ONCE = Executor(Runnable::run)
    }
}

/**
 * Return the result of [Fleet.predict], computed off the caller's thread.
 *
 * @throws ShoalException like [Fleet.predict]
 */
@Throws(ShoalException::class, kotlin.coroutines.cancellation.CancellationException::class)
public suspend fun Fleet.awaitPrediction(x: Tensor): Prediction = withContext(Dispatchers.IO) { predict(x) }

/**
 * Return the result of [Fleet.predictNext], computed off the caller's thread. Windows count in the
 * order of the calls: await one answer before the next call.
 *
 * @throws ShoalException like [Fleet.predictNext]
 */
@Throws(ShoalException::class, kotlin.coroutines.cancellation.CancellationException::class)
public suspend fun Fleet.awaitNextPrediction(window: Tensor, beginNs: Long): Prediction = withContext(Dispatchers.IO) { predictNext(window, beginNs) }
