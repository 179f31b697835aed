package io.shoal.core.wire

import io.shoal.core.InternalShoalApi

/**
 * Names of tensors, which are built and parsed here and nowhere else (`wire/SPEC.md`, 'Names of
 * tensors'). A name is `ROLE/NAME`: the part before its first `/` is its role.
 */
@InternalShoalApi
public object Names {
    internal const val SHARED = "shared"
    internal const val STATISTIC = "statistic"
    internal const val PRIVATE = "private"
    internal const val SLOT = "slot"
    internal const val MEMORY = "memory"
    internal const val RECEIVED = "received"
    internal const val DELTA = "delta"
    internal const val RESPONSE = "response"
    public const val HYPER: String = "hyper"
    internal const val UNIFORM = "uniform"
    public const val NEXT: String = "next"
    public const val METRIC: String = "metric"
    internal const val OUTPUT = "output"
    internal const val COLUMN = "column"
    internal const val PERSONAL = "personal"
    internal const val MASKED = "masked"

    /** Roles of a bundle's tensors. */
    internal val ROLES = setOf(SHARED, STATISTIC, PRIVATE, SLOT, MEMORY, RECEIVED)

    internal const val X = "batch/x"
    internal const val Y = "batch/y"

    /**
     * Inputs in the split `windows`: the rank of each window, the number of windows, and 1 for a
     * window that is held out.
     */
    internal const val RANK = "batch/rank"
    internal const val COUNT = "batch/count"
    internal const val HOLDOUT = "batch/holdout"
    internal const val PROBABILITIES = "output/probabilities"

    /** All changes of an update, one after the other, in int8. */
    internal const val INT8_VALUES = "int8/values"

    /** Factor of the values of each block. */
    internal const val INT8_SCALES = "int8/scales"
    private const val START = "received/start."
    private const val VARIANCE_OF = "variance."
    private const val RUNNING_VAR = "running_var"

    internal fun key(role: String, name: String) = "$role/$name"

    /**
     * Return the name of a memory of a device's windows by one model. It has its initial value in
     * every round, and is stored with that model.
     */
    internal fun memory(name: String) = key(MEMORY, name)

    internal fun shared(name: String) = key(SHARED, name)

    /** Return the name of the change of `shared/NAME` in an update: local minus received. */
    internal fun delta(name: String) = key(DELTA, name)

    /**
     * Return the name of a graph's measurement: of a metric, or of its one output per example if
     * there is no [metric].
     */
    internal fun response(graph: String, metric: String = "") = key(RESPONSE, if (metric.isEmpty()) graph else "$graph.$metric")

    /**
     * Return the name of an input with a row for each example, or of a random input by
     * `uniform/NAME` or `normal/NAME`.
     */
    internal fun batch(column: String) = key("batch", column)

    /** Return the name of a hyper-parameter as an input, a float32 scalar. */
    internal fun hyper(name: String) = key(HYPER, name)

    /** Return the name of an output that is a sum over the batch. */
    internal fun metric(name: String) = key(METRIC, name)

    /**
     * Return the name of a stored column of a device's training windows. Graphs read it as
     * `batch/COLUMN`.
     */
    internal fun column(name: String) = key(COLUMN, name)

    /** Return the name of a tensor `ROLE/NAME` of a personal model. */
    internal fun personal(key: String) = key(PERSONAL, key)

    /** Return the name of a part's masked integers in an update, as bytes. */
    internal fun masked(part: String) = key(MASKED, part)

    /** Return the part before the first `/`. A key without one is all role. */
    public fun roleOf(key: String): String = key.substringBefore('/')

    /** Return the part after the first `/`. A key without one has an empty name. */
    public fun nameOf(key: String): String = key.substringAfter('/', "")

    /** Return true for `received/start.NAME`. */
    internal fun isStart(key: String) = key.startsWith(START)

    /** Return `shared/NAME` for `received/start.NAME`. */
    internal fun startedFrom(key: String) = shared(key.removePrefix(START))

    /** Return true if it leaves a device and is averaged: `shared/NAME` or `statistic/NAME`. */
    internal fun isExchanged(key: String) = roleOf(key).let { it == SHARED || it == STATISTIC }

    /**
     * Return true if it must not be below 0: `statistic/NAME` if NAME ends with `running_var`, and
     * `response/GRAPH.variance.LAYER`. Parameters, changes and other metrics are not variances,
     * whatever their names are.
     */
    internal fun isVariance(key: String): Boolean = when (roleOf(key)) {
        STATISTIC -> nameOf(key).endsWith(RUNNING_VAR)
        RESPONSE -> nameOf(key).substringAfter('.', "").startsWith(VARIANCE_OF)
        else -> false
    }

    /** Return the entries of one role, by their names within it. */
    public fun <T> part(tensors: Map<String, T>, role: String): Map<String, T> {
        val prefix = "$role/"
        val entries = LinkedHashMap<String, T>()
        for ((key, value) in tensors) if (key.startsWith(prefix)) entries[key.substring(prefix.length)] = value
        return entries
    }
}
