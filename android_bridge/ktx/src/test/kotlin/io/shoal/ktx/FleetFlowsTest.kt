package io.shoal.ktx

import io.shoal.android.Attestation
import io.shoal.android.DeviceKey
import io.shoal.android.EnrolmentDesk
import io.shoal.android.Fleet
import io.shoal.android.FleetBuilder
import io.shoal.android.FleetState
import io.shoal.android.Home
import io.shoal.android.ModelInfo
import io.shoal.android.Platform
import io.shoal.android.RecordingOptions
import io.shoal.android.RoundMetrics
import io.shoal.android.RoundRequest
import io.shoal.android.SensorRecorder
import io.shoal.android.ShoalSettings
import io.shoal.android.WindowSource
import io.shoal.android.WindowSpec
import io.shoal.core.Current
import io.shoal.core.GraphLoader
import io.shoal.core.Graphs
import io.shoal.core.Log
import io.shoal.core.ModelUnavailableException
import io.shoal.core.Tensor
import io.shoal.core.wire.Bundle
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.Update
import io.shoal.core.wire.encodeUpdate
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.async
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.take
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import org.junit.jupiter.api.io.TempDir
import java.io.File
import java.util.concurrent.Executor
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertIs
import kotlin.test.assertSame
import kotlin.test.assertTrue

class FleetFlowsTest {
    @TempDir
    lateinit var root: File

    class Source : WindowSource {
        override fun load(context: android.content.Context, fleet: String) = null
    }

    private object Nothing : Platform {
        override val disk = Executor(Runnable::run)
        override val reader = disk

        override val isUnlocked = true

        override fun schedule(settings: ShoalSettings) = Unit

        override fun request(job: RoundRequest, settings: ShoalSettings) = Unit

        override fun scheduleEnrolment() = Unit

        override fun scheduleWithdrawal() = Unit

        override fun attest(provider: Attestation, nonce: String): String = throw AssertionError("nothing is attested")

        override fun cancel() = Unit

        override fun loader(folder: File): GraphLoader = object : GraphLoader {
            override val runtime = "none"

            override fun load(bundle: Bundle): Graphs = throw AssertionError("no program is loaded")
        }

        override fun answering(folder: File): GraphLoader = loader(folder)

        override fun key(alias: String): DeviceKey = throw AssertionError("no key is used")

        override fun desk(service: String): EnrolmentDesk = throw AssertionError("nobody enrols")

        override fun asset(name: String): ByteArray = throw AssertionError("there are no assets")

        override val epochNs: Long = 0

        override fun recorder(fleet: Fleet, spec: WindowSpec, options: RecordingOptions): SensorRecorder = throw AssertionError("nothing is recorded")
    }

    private fun fleet() = Fleet("f", Home.of(root, "f"), Nothing, Log.SILENT).also {
        it.configure(FleetBuilder("f").broker("mqtt://b").windows(Source::class.java).allowInsecure().build())
    }

    @Test
    fun `state and model flow as they change, consent too`() = runBlocking {
        val fleet = fleet()
        assertSame(fleet.flows, fleet.flows)
        assertIs<FleetState.Blocked>(fleet.flows.state.value)
        fleet.consent.grant("terms-1")
        assertIs<FleetState.Idle>(fleet.flows.state.value)
        fleet.states.set(FleetState.Training(3, 40))
        assertEquals("training 3/40", "${fleet.flows.state.value}")
        assertEquals(null, fleet.flows.model.value)
        fleet.storage().saveCurrent(Current("b".repeat(64), "c".repeat(64), "r", emptyMap(), 2))
        assertEquals(2, withTimeout(5000) { fleet.flows.model.first { it != null } }!!.release)
        assertEquals(2, fleet().flows.model.value!!.release)
        fleet.consent.withdraw()
        assertEquals(FleetState.Blocked.Reason.CONSENT, assertIs<FleetState.Blocked>(fleet.flows.state.value).reason)
    }

    @Test
    fun `flows and callbacks say the same of every change`() = runBlocking {
        val fleet = fleet()
        val (states, models, rounds) = Triple(ArrayList<FleetState>(), ArrayList<ModelInfo>(), ArrayList<RoundMetrics>())
        fleet.addListener(states::add, Runnable::run)
        fleet.addModelListener(models::add, Runnable::run)
        fleet.addRoundListener(rounds::add, Runnable::run)
        val changes: List<() -> Unit> = listOf(
            { fleet.consent.grant("terms-1") },
            { fleet.states.set(FleetState.Training(3, 40)) },
            { fleet.states.set(FleetState.Uploading) },
            { fleet.states.set(FleetState.Blocked(FleetState.Blocked.Reason.BANNED, "banned")) },
            *FleetState.Waiting.Reason.entries.map { { fleet.states.set(FleetState.Waiting(it)) } }.toTypedArray(),
            { fleet.consent.withdraw() },
        )
        for (change in changes) {
            val before = states.size
            change()
            assertTrue(states.size > before)
            assertEquals(listOf(fleet.state, fleet.state), listOf(states.last(), fleet.flows.state.value))
        }
        fleet.storage().saveCurrent(Current("b".repeat(64), "c".repeat(64), "r", emptyMap(), 2))
        assertEquals(listOf(fleet.model, fleet.model), listOf(models.last(), withTimeout(5000) { fleet.flows.model.first { it == fleet.model } }))
        val flowing = async(start = CoroutineStart.UNDISPATCHED) { fleet.flows.metrics.first() }
        delay(200) // until it collects
        val update = Update("r", 1, 1, 0, fleet.deviceId, "c".repeat(64), 8, 1, Metrics(2, 1.0, 1), Metrics(8, 4.0, 6))
        fleet.storage().putUpdate("r", 1, encodeUpdate(update, emptyMap()), emptyMap())
        assertEquals(rounds.single(), withTimeout(5000) { flowing.await() })
    }

    @Test
    fun `a slow collector misses no round`() = runBlocking {
        val fleet = fleet()
        val rounds = async(start = CoroutineStart.UNDISPATCHED) { fleet.flows.metrics.take(100).toList() }
        delay(200) // until it collects
        for (round in 1..100L) {
            val update = Update("r", 1, round, 0, fleet.deviceId, "c".repeat(64), 8, 1, Metrics(2, 1.0, 1), Metrics(8, 4.0, 6))
            fleet.storage().putUpdate("r", round, encodeUpdate(update, emptyMap()), emptyMap())
        }
        val metrics = withTimeout(10_000) { rounds.await() }
        assertEquals((1..100L).toList(), metrics.map { it.round })
        assertEquals(listOf(0.5, 0.75, 0.5), metrics[0].run { trained!!.let { listOf(it.loss, it.accuracy) } + evaluated!!.loss })
    }

    @Test
    fun `what a prediction throws is thrown to who waits for it`() {
        val window = Tensor.of(FloatArray(8), listOf(1, 2, 4))
        runBlocking {
            assertFailsWith<ModelUnavailableException> { fleet().awaitPrediction(window) }
            assertFailsWith<ModelUnavailableException> { fleet().awaitNextPrediction(window, 0) }
        }
    }
}
