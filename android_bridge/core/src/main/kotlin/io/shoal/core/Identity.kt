package io.shoal.core

import io.shoal.core.random.Noise
import io.shoal.core.secret.SecretPolicy
import io.shoal.core.wire.Limits
import io.shoal.core.wire.Policy
import io.shoal.core.wire.PublicKey

/**
 * Name of a device, and its owner's decisions.
 *
 * @property trusted root keys; without any, every message is believed
 * @property policy what the owner permits; null for the defaults
 * @property secret rules for secret sums; null if the device takes part in none
 * @property key key of the device's certificate, which signs its answers in secret sums
 */
internal class Identity(
    val deviceId: String,
    val fleet: String,
    val trusted: List<PublicKey> = emptyList(),
    val policy: Policy? = null,
    val secret: SecretPolicy? = null,
    val key: EnrolmentKey? = null,
)

/**
 * Everything around a device's agent: its data, storage, runtime, clocks and listeners.
 *
 * @property mostBytes size of the largest model and update
 */
internal class Environment(
    val windows: Windows,
    val storage: Storage,
    val loader: GraphLoader,
    val health: () -> Health = { Health() },
    val clock: Clock = Clock.SYSTEM,
    val log: Log = Log.SILENT,
    val noise: Noise = Noise.fromEntropy(),
    val mostBytes: Int = Limits.PROTOCOL.totalBytes,
    val progress: (Progress) -> Unit = {},
    val pace: Pace = Pace(),
) {
    /**
     * Return the state of the hardware and of the app. An error in the app's own code must not
     * prevent a check-in: then nothing is known.
     */
    fun state(): Health = (contained { health() } as? Contained.Done)?.value ?: Health()
}
