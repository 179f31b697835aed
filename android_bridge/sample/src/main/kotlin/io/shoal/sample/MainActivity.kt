package io.shoal.sample

import android.app.Activity
import android.os.Build
import android.os.Bundle
import android.view.View
import android.widget.Button
import android.widget.ProgressBar
import android.widget.TextView
import io.shoal.android.Fleet
import io.shoal.android.FleetListener
import io.shoal.android.FleetState
import io.shoal.android.Prediction
import io.shoal.android.RoundListener
import io.shoal.android.SensorRecorder
import io.shoal.core.ShoalException
import io.shoal.core.Tensor
import io.shoal.recording.RecordingService
import java.util.concurrent.Executor

/**
 * Screen of the app: take part, record with a label, see the model's answer, watch a round, and
 * take part no more.
 */
public class MainActivity : Activity() {
    private val main = Executor { runOnUiThread(it) }
    private val states = FleetListener(::showState)
    private val rounds = RoundListener { round ->
        round.evaluated?.let { text(R.id.result).setText(getString(R.string.round_result, Math.round(100 * it.accuracy), it.windows)) }
    }
    private lateinit var fleet: Fleet
    private var recorder: SensorRecorder? = null
    private var watching = false

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        setContentView(R.layout.main)
        fleet = activities(this)
        button(R.id.give) {
            fleet.consent.grant("terms-1")
            if (Build.VERSION.SDK_INT >= 33) requestPermissions(arrayOf("android.permission.POST_NOTIFICATIONS"), 0)
            showConsent()
        }
        button(R.id.withdraw) {
            RecordingService.stop(this)
            fleet.consent.withdraw(eraseLocal = true)
            showConsent()
            showRecording(null)
        }
        val names = mapOf(R.id.still to "still", R.id.walking to "walking", R.id.stairs to "stairs", R.id.unlabelled to null)
        for ((id, label) in names) button(id) { record(label) }
        button(R.id.stop) {
            RecordingService.stop(this)
            showRecording(null)
        }
        button(R.id.watch) { if (watching) unwatch() else watch() }
        button(R.id.train) { fleet.requestTraining() }
    }

    override fun onStart() {
        super.onStart()
        fleet.addListener(states, main)
        fleet.addRoundListener(rounds, main)
        showConsent()
    }

    override fun onResume() {
        super.onResume()
        // the view keeps its text when the phone is turned, and the recording may have been ended from its notification since
        if (!RecordingService.isRecording(fleet)) showRecording(null)
    }

    override fun onStop() {
        fleet.removeListener(states)
        fleet.removeRoundListener(rounds)
        unwatch()
        super.onStop()
    }

    private fun record(label: String?) {
        try {
            RecordingService.start(this, fleet, label) // it continues while the screen is off
            showRecording(getString(label?.let(::nameOf) ?: R.string.record_unlabelled))
        } catch (error: ShoalException) { // this phone has no such sensor
            text(R.id.recording).setText(getString(R.string.state_blocked, error.message.orEmpty()))
        }
    }

    private fun watch() {
        try {
            val open = recorder ?: fleet.recorder().also { recorder = it }
            open.watch(::answer)
            watching = true
        } catch (error: ShoalException) { // this phone has no such sensor
            text(R.id.live).setText(getString(R.string.state_blocked, error.message.orEmpty()))
        }
        text(R.id.watch).setText(if (watching) R.string.live_stop else R.string.live_start)
    }

    private fun unwatch() {
        recorder?.watch(null)
        watching = false
        text(R.id.watch).setText(R.string.live_start)
    }

    /**
     * Show the model's answer for a window. Called on the recorder's thread, since a prediction
     * must not be made on the main thread.
     */
    private fun answer(window: Tensor, beginNs: Long) {
        val words = try {
            val answer = fleet.predictNext(window, beginNs) as Prediction.Classes
            val best = answer.best(0)
            getString(R.string.live_answer, getString(nameOf(best)), Math.round(100 * answer.values(0).max()))
        } catch (_: ShoalException) {
            getString(R.string.live_none)
        }
        runOnUiThread { if (watching) text(R.id.live).setText(words) }
    }

    private fun showConsent() {
        val takesPart = fleet.consent.isGranted
        findViewById<View>(R.id.give).setVisibility(if (takesPart) View.GONE else View.VISIBLE)
        findViewById<View>(R.id.withdraw).setVisibility(if (takesPart) View.VISIBLE else View.GONE)
        findViewById<View>(R.id.member).setVisibility(if (takesPart) View.VISIBLE else View.GONE)
    }

    private fun showRecording(what: String?) {
        text(R.id.recording).setText(if (what == null) getString(R.string.recording_not) else getString(R.string.recording, what))
    }

    private fun showState(state: FleetState) {
        text(R.id.state).setText(wordsOf(state))
        findViewById<ProgressBar>(R.id.progress).setProgress(percentOf(state))
    }

    private fun wordsOf(state: FleetState): String = when (state) {
        FleetState.Idle -> getString(R.string.state_idle)
        is FleetState.Training -> getString(R.string.state_training, percentOf(state))
        FleetState.Uploading -> getString(R.string.state_uploading)
        is FleetState.Blocked ->
            if (state.reason == FleetState.Blocked.Reason.CONSENT) getString(R.string.state_consent) else getString(R.string.state_blocked, state.detail)
        is FleetState.Waiting -> getString(
            when (state.reason) {
                FleetState.Waiting.Reason.NETWORK -> R.string.state_network
                FleetState.Waiting.Reason.STORAGE -> R.string.state_storage
                FleetState.Waiting.Reason.HEAT -> R.string.state_heat
                FleetState.Waiting.Reason.WINDOWS -> R.string.state_windows
                FleetState.Waiting.Reason.UNLOCK -> R.string.state_unlock
                FleetState.Waiting.Reason.ENROLMENT -> R.string.state_enrolment
                FleetState.Waiting.Reason.APPROVAL -> R.string.state_approval
                FleetState.Waiting.Reason.JOB -> R.string.state_job
            },
        )
    }

    private fun percentOf(state: FleetState): Int = if (state is FleetState.Training && state.of > 0) (100 * state.step / state.of).toInt() else 0

    /** Return the words, in the user's language, for one of the model's classes. */
    private fun nameOf(label: String): Int = when (label) {
        "still" -> R.string.still
        "walking" -> R.string.walking
        else -> R.string.stairs
    }

    private fun text(id: Int): TextView = findViewById(id)

    private fun button(id: Int, act: () -> Unit) = findViewById<Button>(id).setOnClickListener { act() }
}
