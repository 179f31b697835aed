package io.shoal.sample

import android.app.Activity
import android.os.Bundle
import android.widget.Button
import android.widget.LinearLayout
import android.widget.TextView
import io.shoal.android.RecordedWindows
import io.shoal.android.SensorRecorder
import io.shoal.android.Shoal
import io.shoal.android.WindowSpec

/** What the fleet's model looks at: 128 samples at 50 Hz of accelerometer and gyroscope. */
public class Activities : RecordedWindows(WindowSpec(classes = listOf("still", "walking", "stairs"), length = 128, stride = 64, rateHz = 50.0))

/** The public root key that `shoal export` wrote to `trust.pem`; the private half of this one is nowhere. */
private const val TRUST_PEM = """-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAn/rFkoLLld3De0DiKH8u//+pUFKvAcZSdt/7dblJoss=
-----END PUBLIC KEY-----
"""

/** As `shoal enrol token` prints one; no service knows this one. */
private const val TOKEN = "shoal1.AAECAwQFBgcICQoLDA0OD492_VAbto73H04na8KPKbzhADsMLJ2UeN6Btb_AzeHpx8Q3"

/** Joins a fleet once the user agrees, and records what the user says they are doing. */
public class MainActivity : Activity() {
    private var recorder: SensorRecorder? = null

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        // A real app has the token from its own server, one for each phone, and the root key of its fleet's `trust.pem` here.
        val fleet = Shoal.fleet(this, "activities") {
            enrol("https://shoal.example:8443", TOKEN)
            trust(TRUST_PEM)
            windows(Activities::class.java)
            policy { maxEpochs(20.0).maxBytesADay(50_000_000) }
        }
        val spec = Activities().spec
        val recorder = fleet.recorder(spec).also { this.recorder = it }
        val state = TextView(this)
        state.setText("${fleet.state}")
        val layout = LinearLayout(this)
        layout.setOrientation(LinearLayout.VERTICAL)
        layout.addView(state)
        val consent = Button(this)
        consent.setText("take part")
        consent.setOnClickListener {
            fleet.consent.grant("terms-1")
            state.setText("${fleet.state}")
        }
        layout.addView(consent)
        for (label in spec.classes) {
            val button = Button(this)
            button.setText(label)
            button.setOnClickListener {
                if (fleet.consent.granted) {
                    recorder.start(label)
                    state.setText("recording $label")
                }
            }
            layout.addView(button)
        }
        val stop = Button(this)
        stop.setText("stop")
        stop.setOnClickListener {
            recorder.stop()
            state.setText("kept")
        }
        layout.addView(stop)
        setContentView(layout)
    }

    override fun onStop() {
        recorder?.stop()
        super.onStop()
    }
}
