package io.shoal.core

import io.shoal.core.wire.Bundle
import java.io.Closeable

/** The graphs of one bundle, ready to run. Used by one thread at a time. */
@InternalShoalApi
public interface Graphs : Closeable {
    /** The most examples that a batch may have, the least over all graphs; null: no limit. */
    public val maxBatch: Int?

    /**
     * Runs a graph on named tensors; others in [inputs] than the graph names are ignored. The outputs, by name, are their own copies.
     *
     * @throws BundleException the bundle has no such graph, an input is missing, or the runtime refuses the graph or its inputs
     */
    public fun run(graph: String, inputs: Tensors): Tensors
}

/** Makes a verified bundle's graphs ready. */
@InternalShoalApi
public interface GraphLoader {
    /** What a check-in says of the runtime, such as `executorch`. */
    public val runtime: String

    /** @throws BundleException the bundle has no programs for this runtime, or needs a newer one ([Bundle.require]) */
    public fun load(bundle: Bundle): Graphs
}

/**
 * What a device says of itself when it checks in; null where it cannot know. [moved]: its data are no longer those of its last survey
 * ([Drift]); a service that surveys devices then surveys it again.
 */
@InternalShoalApi
public data class Health(
    val batteryPercent: Double? = null,
    val unmetered: Boolean? = null,
    val moved: Boolean = false,
    val hardware: String = "",
    /** Storage that the client may still take. */
    val freeBytes: Long? = null,
    val temperatureC: Double? = null,
    /** Whether it runs on outside power. */
    val charging: Boolean? = null,
    /** Whether nobody uses it now. */
    val idle: Boolean? = null,
)

/** What a device is doing, for somebody who looks on. */
@InternalShoalApi
public sealed class Progress {
    /** It trains: [step] of [of] steps of the plan are done. */
    public class Training(public val step: Long, public val of: Long) : Progress()

    /** A finished update awaits its answer. */
    public object Uploading : Progress()

    /** It waits for what comes next. */
    public object Waiting : Progress()
}

/** What time it is. */
@InternalShoalApi
public fun interface Clock {
    /** Unix time in seconds, as the device believes it to be: it may be wrong, and may be set. */
    public fun nowSeconds(): Double

    /** Seconds since some moment, by a clock that cannot be set. */
    public fun steadySeconds(): Double = System.nanoTime() / 1e9

    public companion object {
        /** The system's clocks. */
        public val SYSTEM: Clock = Clock { System.currentTimeMillis() / 1000.0 }
    }
}

/** Where lines for people go; never data of the device's windows. */
@InternalShoalApi
public fun interface Log {
    /** Takes one line, without its end. */
    public fun write(level: Level, line: String)

    /** How much a line matters. */
    public enum class Level { INFO, WARNING, ERROR }

    public companion object {
        /** Writes nothing. */
        public val SILENT: Log = Log { _, _ -> }
    }
}
