package io.shoal.core

import io.shoal.core.wire.Bundle
import java.io.Closeable

/** Graphs of one bundle, ready to run. Used by one thread at a time. */
@InternalShoalApi
public interface Graphs : Closeable {
    /** Size of the largest batch that all graphs accept; null: no limit. */
    public val maxBatch: Int?

    /**
     * Run a graph on named tensors, and return copies of its outputs by name. [inputs] that the
     * graph does not name are ignored.
     *
     * @throws BundleException the bundle has no such graph, an input is missing, or the runtime
     *   refuses the graph or its inputs
     */
    public fun run(graph: String, inputs: Tensors): Tensors
}

/** Loader of a verified bundle's graphs. */
@InternalShoalApi
public interface GraphLoader {
    /** Name of the runtime in a check-in, such as `executorch`. */
    public val runtime: String

    /**
     * Load the runtime itself, unless it is loaded.
     *
     * @throws UnsupportedException it does not run on this device
     */
    public fun require(): Unit = Unit

    /**
     * Load a bundle's graphs.
     *
     * @throws BundleException the bundle has no programs for this runtime, or needs a newer one
     *   ([Bundle.require])
     * @throws UnsupportedException the runtime does not run on this device
     */
    public fun load(bundle: Bundle): Graphs
}

/**
 * State of the hardware and of the app for a check-in; null if the device cannot know it. [moved]: true if the
 * data have moved since the last survey ([Drift]); a service that surveys devices then surveys this
 * one again.
 */
@InternalShoalApi
public data class Health(
    val batteryPercent: Double? = null,
    val unmetered: Boolean? = null,
    val moved: Boolean = false,
    val hardware: String = "",
    /** Storage that the client may still use (bytes). */
    val freeBytes: Long? = null,
    val temperatureC: Double? = null,
    /** True if it is connected to power. */
    val charging: Boolean? = null,
    /** True if nobody uses it now. */
    val idle: Boolean? = null,
    /** Version of the app. */
    val app: String = "",
    /** Explanation of the last end of the app's process, or empty. */
    val lastExit: String = "",
)

/** Current work of a device, for display. */
@InternalShoalApi
public sealed class Progress {
    /** Training: [step] of [of] steps of the plan are finished. */
    public class Training(public val step: Long, public val of: Long) : Progress()

    /** A finished update waits for its answer. */
    public object Uploading : Progress()

    /** Nothing to do until the next message. */
    public object Waiting : Progress()
}

/** Clocks of the device. */
@InternalShoalApi
public fun interface Clock {
    /**
     * Return the Unix time in seconds, from the device's own clock, which may be wrong and may be
     * set.
     */
    public fun nowSeconds(): Double

    /** Return seconds since some moment, by a clock that cannot be set. */
    public fun steadySeconds(): Double = System.nanoTime() / 1e9

    public companion object {
        /** Clocks of the system. */
        public val SYSTEM: Clock = Clock { System.currentTimeMillis() / 1000.0 }
    }
}

/** Log for people. It never contains data of the device's windows. */
@InternalShoalApi
public fun interface Log {
    /** Write one line, without its line end. */
    public fun write(level: Level, line: String)

    /** Severity of a line. */
    public enum class Level { INFO, WARNING, ERROR }

    public companion object {
        /** Log that discards every line. */
        public val SILENT: Log = Log { _, _ -> }
    }
}
