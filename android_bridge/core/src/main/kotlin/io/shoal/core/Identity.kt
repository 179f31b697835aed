package io.shoal.core

import io.shoal.core.random.Noise
import io.shoal.core.wire.Limits
import io.shoal.core.wire.Policy
import io.shoal.core.wire.PublicKey

/** Who a device is and what its owner settled: its name, whom it trusts (no key: anybody), what it permits (null: what is usual). */
internal class Identity(
    val deviceId: String,
    val fleet: String,
    val trusted: List<PublicKey> = emptyList(),
    val policy: Policy? = null,
)

/** What a device trains with and keeps its memory in, and what it learns of the world from. [mostBytes]: of a model, an update. */
internal class Surroundings(
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
)
