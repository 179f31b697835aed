package io.shoal.sample

import android.content.Context
import io.shoal.android.Fleet
import io.shoal.android.RecordedWindows
import io.shoal.android.Shoal
import io.shoal.android.WindowSpec

/** Windows of the fleet's model: 128 samples at 50 Hz of accelerometer and gyroscope. */
public class Activities : RecordedWindows(WindowSpec(classes = listOf("still", "walking", "stairs"), length = 128, stride = 64, rateHz = 50.0))

/**
 * Public root key, as `shoal export` writes it to `trust.pem`. The private half of this one exists
 * nowhere.
 */
private const val TRUST_PEM = """-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAn/rFkoLLld3De0DiKH8u//+pUFKvAcZSdt/7dblJoss=
-----END PUBLIC KEY-----
"""

/** Token, as `shoal enrol token` prints it. No service knows this one. */
private const val TOKEN = "shoal1.AAECAwQFBgcICQoLDA0OD492_VAbto73H04na8KPKbzhADsMLJ2UeN6Btb_AzeHpx8Q3"

/**
 * Name of a bundle among the app's assets, `device.shoal` of `shoal export`. With it the app
 * answers from the first second.
 */
private const val MODEL = "activities.shoal"

/**
 * Return the fleet of this app. A real app gets the token from its own server, one for each phone,
 * and has its fleet's root key here.
 */
internal fun activities(context: Context): Fleet = Shoal.fleet(context, "activities") {
    enrol("https://shoal.example:8443", TOKEN)
    trust(TRUST_PEM)
    windows(Activities::class)
    if (MODEL in context.assets.list("").orEmpty()) model(MODEL)
    policy { maxEpochs(20.0).maxBytesPerDay(50_000_000) }
}
