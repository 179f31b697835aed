package io.shoal.core.wire

import io.shoal.core.InternalShoalApi

/**
 * Every name of a tensor is built and parsed here and nowhere else (`wire/SPEC.md`, 'Names of tensors'). A name is `ROLE/NAME`: what stands
 * before its first `/` is its role, and NAME says nothing of the role.
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
    internal const val KEPT = "kept"

    /** The roles that a bundle's tensors have. */
    internal val ROLES = setOf(SHARED, STATISTIC, PRIVATE, SLOT, MEMORY, RECEIVED)

    internal const val X = "batch/x"
    internal const val Y = "batch/y"

    /** In the split `windows`: the place of each window, how many there are, and 1 for one that is held out. */
    internal const val RANK = "batch/rank"
    internal const val COUNT = "batch/count"
    internal const val HELD = "batch/held"
    internal const val PROBABILITIES = "output/probabilities"

    /** All changes of an update one after the other, in int8. */
    internal const val INT8_VALUES = "int8/values"

    /** What the values of each block are to be multiplied with. */
    internal const val INT8_SCALES = "int8/scales"
    private const val START = "received/start."
    private const val VARIANCE_OF = "variance."
    private const val RUNNING_VAR = "running_var"

    internal fun key(role: String, name: String) = "$role/$name"

    /** What a device remembers of its windows by one model: set to its initial value every round, and kept with that model. */
    internal fun memory(name: String) = key(MEMORY, name)

    internal fun shared(name: String) = key(SHARED, name)

    /** What an update says of `shared/NAME`: local minus received. */
    internal fun delta(name: String) = key(DELTA, name)

    /** What a graph measured: a metric of it, or its one output per example where there is no [metric]. */
    internal fun response(graph: String, metric: String = "") = key(RESPONSE, if (metric.isEmpty()) graph else "$graph.$metric")

    /** An input with a row for each example, or a random input by `uniform/NAME` or `normal/NAME`. */
    internal fun batch(column: String) = key("batch", column)

    /** A hyper-parameter as an input, a float32 scalar. */
    internal fun hyper(name: String) = key(HYPER, name)

    /** An output that is a sum over the batch. */
    internal fun metric(name: String) = key(METRIC, name)

    /** A column of a device's training windows, where it is kept; graphs read it as `batch/COLUMN`. */
    internal fun column(name: String) = key(COLUMN, name)

    /** `ROLE/NAME` of a model that the device has trained for itself alone. */
    internal fun kept(key: String) = key(KEPT, key)

    /** What stands before the first `/`; a key without one is all role. */
    public fun roleOf(key: String): String = key.substringBefore('/')

    /** What stands after the first `/`; a key without one has an empty name. */
    public fun nameOf(key: String): String = key.substringAfter('/', "")

    /** Whether it is `received/start.NAME`. */
    internal fun isStart(key: String) = key.startsWith(START)

    /** `shared/NAME` for `received/start.NAME`. */
    internal fun startedFrom(key: String) = shared(key.removePrefix(START))

    /** Whether it leaves a device and is averaged: `shared/NAME` or `statistic/NAME`. */
    internal fun isExchanged(key: String) = roleOf(key).let { it == SHARED || it == STATISTIC }

    /**
     * Whether a value below 0 is wrong: `statistic/NAME` where NAME ends with `running_var`, and `response/GRAPH.variance.LAYER`. A
     * parameter, a delta and any other metric are none, whatever their names are.
     */
    internal fun isVariance(key: String): Boolean = when (roleOf(key)) {
        STATISTIC -> nameOf(key).endsWith(RUNNING_VAR)
        RESPONSE -> nameOf(key).substringAfter('.', "").startsWith(VARIANCE_OF)
        else -> false
    }

    /** The entries of one role, by their names within it. */
    public fun <T> part(tensors: Map<String, T>, role: String): Map<String, T> {
        val prefix = "$role/"
        val found = LinkedHashMap<String, T>()
        for ((key, value) in tensors) if (key.startsWith(prefix)) found[key.substring(prefix.length)] = value
        return found
    }
}
