package io.shoal.core.wire

import io.shoal.core.DType
import io.shoal.core.InternalShoalApi
import io.shoal.core.MalformedException

/** Name, type and shape of a tensor that a message must contain. */
internal data class TensorLayout(val name: String, val dtype: DType, val shape: List<Int>)

/**
 * Tensor of a bundle: its name without the role, its role (`shared statistic private slot
 * received`), type and shape.
 */
@InternalShoalApi
public data class TensorSpec(val name: String, val role: String, val dtype: DType, val shape: List<Int>) {
    /** Its name in graphs and tensor files: `ROLE/NAME`. */
    val key: String get() = Names.key(role, name)

    internal val layout: TensorLayout get() = TensorLayout(key, dtype, shape)
}

/**
 * Graph as a program of one runtime, with the graph's inputs and outputs by position. Its method is
 * `forward`. It accepts batches of at most [maxBatch] examples. [operators] are counts of its
 * operators by name.
 */
@InternalShoalApi
public data class Program(
    val file: String,
    val maxBatch: Int,
    val operators: Map<String, Long> = emptyMap(),
    val numBytes: Long = 0,
    val memoryBytes: Long = 0,
)

/**
 * Graph of a bundle. [inputs] and [outputs] are in the graph's order, [programs] by runtime
 * (`executorch`, `executorch-portable`).
 */
@InternalShoalApi
public data class Graph(
    val file: String,
    val inputs: List<String>,
    val outputs: List<String>,
    val responses: List<Pair<String, List<Int>>> = emptyList(),
    val programs: Map<String, Program> = emptyMap(),
)

/**
 * Shape of one training example: [channels] x [length] samples at [rateHz], one example every
 * [stride] samples; an image if [height] is not 0. If [steps] is not 0, an example is cut into so
 * many parts in time, each with a class.
 */
@InternalShoalApi
public data class Window(
    val channels: List<String>,
    val length: Int,
    val stride: Int,
    val rateHz: Double = 0.0,
    val height: Int = 0,
    val vocabulary: Int = 0,
    val steps: Int = 0,
) {
    /** Type of its values: ids from 0 to below [vocabulary] if there is one, else measurements. */
    val dtype: DType get() = if (vocabulary > 0) DType.INT64 else DType.FLOAT32

    /** Shape of one example: (channels, length), or (channels, height, length) of an image. */
    val shape: List<Int> get() = if (height == 0) listOf(channels.size, length) else listOf(channels.size, height, length)
}

/** Content of a bundle (`wire/SPEC.md`, 'Bundles'). */
@InternalShoalApi
public data class Manifest(
    val name: String,
    val version: Long,
    val algorithm: String,
    val createdBy: Map<String, String>,
    val classes: List<String>,
    val window: Window,
    val minBatch: Int,
    val hyper: Map<String, Double>,
    val tensors: List<TensorSpec>,
    val graphs: Map<String, Graph>,
    val files: Map<String, String>,
    val columns: Map<String, List<Int>> = emptyMap(),
    val random: Map<String, List<Int>> = emptyMap(),
    /** Task. [classes] names the numbers of `predict`. A reconstruction needs no labels. */
    val task: String = Tasks.CLASSIFICATION,
    val format: Long = 1,
) {
    /** True if only windows with labels are used in training and tests. */
    public val needsLabels: Boolean get() = task != Tasks.RECONSTRUCTION

    /** Type and shape of the label of a window. */
    public val label: Label
        get() = when (task) {
            Tasks.SEQUENCE -> Label(DType.INT64, listOf(window.steps))
            Tasks.MULTI_LABEL -> Label(DType.INT64, listOf(classes.size))
            Tasks.REGRESSION -> Label(DType.FLOAT32, listOf(classes.size))
            else -> Label(DType.INT64, emptyList())
        }

    /**
     * Shape of the answer of `predict` for one window: a number for each name, or for each name of
     * each step.
     */
    public val answer: List<Int>
        get() = if (task == Tasks.SEQUENCE) listOf(window.steps, classes.size) else listOf(classes.size)

    /**
     * Graph that measures the answers of the device's own model: `assess` if there is one, else
     * `evaluate`.
     */
    internal val measuring: String
        get() {
            val outputs = graphs["assess"]?.outputs.orEmpty()
            return if (outputs.containsAll(listOf("loss_sum", "num_correct").map(Names::metric))) "assess" else "evaluate"
        }

    /** Return the tensors of these roles, in the manifest's order. */
    public fun ofRole(vararg roles: String): List<TensorSpec> = tensors.filter { it.role in roles }

    /**
     * Return the tensors of a model's blob: shared, statistic and received, except
     * `received/start.NAME`, which the device sets itself.
     */
    public fun received(): List<TensorSpec> = ofRole(Names.SHARED, Names.STATISTIC, Names.RECEIVED).filterNot { Names.isStart(it.key) }

    internal companion object {
        private val INTS = 1L..Int.MAX_VALUE

        /**
         * Parse a manifest.
         *
         * @throws MalformedException it is not a manifest
         */
        fun parse(payload: ByteArray): Manifest {
            val f = Fields(parseJson(payload), "manifest")
            return Manifest(
                name = f.name("name"),
                version = f.positive("version"),
                algorithm = f.text("algorithm"),
                createdBy = f.map("created_by", item = ::string),
                classes = f.strings("classes"),
                window = window(f.obj("window")),
                minBatch = f.int("min_batch", INTS).toInt(),
                hyper = f.doubles("hyper"),
                tensors = f.list("tensors") { it, path -> tensor(Fields(it, path)) },
                graphs = f.map("graphs") { it, path -> graph(Fields(it, path)) },
                files = f.map("files") { it, path -> string(it, path).also { if (!isDigest(it)) throw MalformedException("$path: no SHA-256") } },
                columns = f.map("columns", emptyMap(), Fields::sizesOf),
                random = f.map("random", emptyMap(), Fields::sizesOf),
                task = f.oneOf("task", Tasks.ALL, Tasks.CLASSIFICATION),
                format = f.positive("format", 1),
            )
        }

        private fun window(f: Fields) = Window(
            channels = f.strings("channels"),
            length = f.int("length", INTS).toInt(),
            stride = f.int("stride", INTS).toInt(),
            rateHz = f.double("rate_hz", 0.0),
            height = f.int("height", 0L..Int.MAX_VALUE, 0).toInt(),
            vocabulary = f.int("vocabulary", 0L..Int.MAX_VALUE, 0).toInt(),
            steps = f.int("steps", 0L..Int.MAX_VALUE, 0).toInt(),
        )

        private fun tensor(f: Fields): TensorSpec {
            val dtype = f.oneOf("dtype", DType.entries.filter { it != DType.INT8 }.map { it.manifestName }) // int8 is for updates alone
            return TensorSpec(f.string("name"), f.oneOf("role", Names.ROLES), DType.entries.first { it.manifestName == dtype }, f.sizes("shape"))
        }

        private fun graph(f: Fields) = Graph(
            file = f.text("file"),
            inputs = f.strings("inputs"),
            outputs = f.strings("outputs"),
            responses = f.list("responses", emptyList()) { it, path ->
                val pair = (it as? JsonArray)?.items.orEmpty()
                if (pair.size != 2) throw MalformedException("$path: expected [name, shape]")
                string(pair[0], path) to Fields.sizesOf(pair[1], path)
            },
            programs = f.map("programs", emptyMap()) { it, path -> program(Fields(it, path)) },
        )

        private fun program(f: Fields) = Program(
            file = f.text("file"),
            maxBatch = f.int("max_batch", INTS).toInt(),
            operators = f.map("operators", emptyMap()) { it, path -> Fields.countOf(it, path) },
            numBytes = f.count("num_bytes", 0),
            memoryBytes = f.count("memory_bytes", 0),
        )

        private fun string(value: Json, path: String) =
            (value as? JsonString)?.value ?: throw MalformedException("$path: expected str, got ${value.kind}")
    }
}
