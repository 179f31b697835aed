package io.shoal.ktx

import io.shoal.android.Fleet
import io.shoal.android.FleetListener
import io.shoal.android.FleetState
import io.shoal.android.ModelInfo
import io.shoal.android.ModelListener
import io.shoal.android.Probabilities
import io.shoal.android.RoundListener
import io.shoal.android.RoundMetrics
import io.shoal.core.ShoalException
import io.shoal.core.Tensor
import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.Executor
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

private val FLOWS = ConcurrentHashMap<Fleet, FleetFlows>()

/** What the fleet does, as flows; the same ones each time. */
public val Fleet.flows: FleetFlows get() = FLOWS.computeIfAbsent(this) { FleetFlows(it) }

/** State, model and rounds of a fleet as flows. */
public class FleetFlows internal constructor(fleet: Fleet) {
    private val states = MutableStateFlow(fleet.state)
    private val models = MutableStateFlow<ModelInfo?>(null)

    /** What the phone does for the fleet. */
    public val state: StateFlow<FleetState> = states.asStateFlow()

    /** The model that answers; null until it was read, or before there is one, and never again. */
    public val model: StateFlow<ModelInfo?> = models.asStateFlow()

    /** Each round that the phone carries out from the time of the collection on; a slow collector misses none. */
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
 * [Fleet.predict] off the caller's thread, the main thread for example.
 *
 * @throws ShoalException as [Fleet.predict]
 */
@Throws(ShoalException::class, kotlin.coroutines.cancellation.CancellationException::class)
public suspend fun Fleet.awaitPrediction(x: Tensor): Probabilities = withContext(Dispatchers.IO) { predict(x) }
