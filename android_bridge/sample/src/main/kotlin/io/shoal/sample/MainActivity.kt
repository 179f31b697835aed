package io.shoal.sample

import android.app.Activity
import android.os.Bundle
import android.widget.Button
import android.widget.LinearLayout
import android.widget.TextView
import io.shoal.android.RecordedWindows
import io.shoal.android.SensorRecorder
import io.shoal.android.Shoal
import io.shoal.android.ShoalSettings
import io.shoal.android.WindowSpec

/** What the fleet's model looks at: 128 samples at 50 Hz of accelerometer and gyroscope. */
public class Activities : RecordedWindows(WindowSpec(classes = listOf("still", "walking", "stairs"), length = 128, stride = 64, rateHz = 50.0))

/** The public root key that `shoal export` wrote to `trust.pem`; the private half of this one is nowhere. */
private const val TRUST_PEM = """-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAn/rFkoLLld3De0DiKH8u//+pUFKvAcZSdt/7dblJoss=
-----END PUBLIC KEY-----
"""

/** Enrols the phone, and records what the user says they are doing. */
public class MainActivity : Activity() {
    private var recorder: SensorRecorder? = null

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        // A real app has its broker's address from its own server, and the root key of its fleet's `trust.pem` here.
        val settings = ShoalSettings("mqtts://broker.example", "activities", Activities::class.java, trustedKeyPem = TRUST_PEM)
        val deviceId = Shoal.enrol(this, settings)
        val spec = Activities().spec
        val recorder = SensorRecorder(this, spec).also { this.recorder = it }
        val state = TextView(this)
        state.setText("$deviceId: ${Shoal.status(this).lastJob}")
        val layout = LinearLayout(this)
        layout.setOrientation(LinearLayout.VERTICAL)
        layout.addView(state)
        for (label in spec.classes) {
            val button = Button(this)
            button.setText(label)
            button.setOnClickListener {
                recorder.start(label)
                state.setText("recording $label")
            }
            layout.addView(button)
        }
        val stop = Button(this)
        stop.setText("stop")
        stop.setOnClickListener { state.setText("kept ${recorder.stop().toInt()} s") }
        layout.addView(stop)
        setContentView(layout)
    }

    override fun onStop() {
        recorder?.stop()
        super.onStop()
    }
}
