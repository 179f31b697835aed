package io.shoal.core.wire

import io.shoal.core.DType
import io.shoal.core.InternalShoalApi
import io.shoal.core.Malformed

/** The name, type and shape of a tensor that a message must carry. */
internal data class TensorLayout(val name: String, val dtype: DType, val shape: List<Int>)

/** One tensor of a bundle: its name without the role, its role (`shared statistic private slot received`), type and shape. */
@InternalShoalApi
public data class TensorSpec(val name: String, val role: String, val dtype: DType, val shape: List<Int>) {
    /** The name it has in graphs and tensor files: `ROLE/NAME`. */
    val key: String get() = Names.key(role, name)

    internal val layout: TensorLayout get() = TensorLayout(key, dtype, shape)
}

/**
 * A graph as a program of one runtime, with the graph's inputs and outputs by position; its method is `forward`. It takes batches of at
 * most [maxBatch] examples; [operators] counts what it is made of.
 */
@InternalShoalApi
public data class Program(
    val file: String,
    val maxBatch: Int,
    val operators: Map<String, Long> = emptyMap(),
    val numBytes: Long = 0,
    val memoryBytes: Long = 0,
)

/** One graph of a bundle. [inputs] and [outputs] are in the graph's order; [programs] by runtime (`executorch`, `executorch-portable`). */
@InternalShoalApi
public data class Graph(
    val file: String,
    val inputs: List<String>,
    val outputs: List<String>,
    val responses: List<Pair<String, List<Int>>> = emptyList(),
    val programs: Map<String, Program> = emptyMap(),
)

/**
 * What one training example is: [channels] x [length] samples, cut every [stride] samples at [rateHz]; with a [height] an image. With
 * [steps], so many parts of it, one after the other in time, have a class each.
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
    /** The type of its values: ids from 0 to below [vocabulary] where there is one, else measurements. */
    val dtype: DType get() = if (vocabulary > 0) DType.INT64 else DType.FLOAT32

    /** The shape of one example: (channels, length), or (channels, height, length) of an image. */
    val shape: List<Int> get() = if (height == 0) listOf(channels.size, length) else listOf(channels.size, height, length)
}

/** What a bundle holds (`wire/SPEC.md`, 'Bundles'). */
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
    /** What is learned. [classes] names the numbers that `predict` gives; in a reconstruction windows need no labels. */
    val task: String = Tasks.CLASSIFICATION,
    val format: Long = 1,
) {
    /** Whether only windows with labels are trained and tested on. */
    public val needsLabels: Boolean get() = task != Tasks.RECONSTRUCTION

    /** What the label of a window is. */
    public val label: Label
        get() = when (task) {
            Tasks.SEQUENCE -> Label(DType.INT64, listOf(window.steps))
            Tasks.MULTI_LABEL -> Label(DType.INT64, listOf(classes.size))
            Tasks.REGRESSION -> Label(DType.FLOAT32, listOf(classes.size))
            else -> Label(DType.INT64, emptyList())
        }

    /** The shape of what `predict` gives of one window: a number for each name, or for each name of each step. */
    public val answer: List<Int>
        get() = if (task == Tasks.SEQUENCE) listOf(window.steps, classes.size) else listOf(classes.size)

    /** The graph that measures what the device answers, with what it has kept: `assess` where there is one, else `evaluate`. */
    internal val measuring: String
        get() {
            val outputs = graphs["assess"]?.outputs.orEmpty()
            return if (outputs.containsAll(listOf("loss_sum", "num_correct").map(Names::metric))) "assess" else "evaluate"
        }

    /** The tensors of these roles, in the manifest's order. */
    public fun ofRole(vararg roles: String): List<TensorSpec> = tensors.filter { it.role in roles }

    /** What a model's blob holds: shared, statistic and received, but for `received/start.NAME`, which the device fills itself. */
    public fun received(): List<TensorSpec> = ofRole(Names.SHARED, Names.STATISTIC, Names.RECEIVED).filterNot { Names.isStart(it.key) }

    internal companion object {
        private val INTS = 1L..Int.MAX_VALUE

        /** @throws Malformed not a manifest */
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
                files = f.map("files") { it, path -> string(it, path).also { if (!isDigest(it)) throw Malformed("$path: no SHA-256") } },
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
            val dtype = f.oneOf("dtype", DType.entries.filter { it != DType.INT8 }.map { it.manifestName }) // of updates alone
            return TensorSpec(f.string("name"), f.oneOf("role", Names.ROLES), DType.entries.first { it.manifestName == dtype }, f.sizes("shape"))
        }

        private fun graph(f: Fields) = Graph(
            file = f.text("file"),
            inputs = f.strings("inputs"),
            outputs = f.strings("outputs"),
            responses = f.list("responses", emptyList()) { it, path ->
                val pair = (it as? JsonArray)?.items.orEmpty()
                if (pair.size != 2) throw Malformed("$path: expected [name, shape]")
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
            (value as? JsonString)?.value ?: throw Malformed("$path: expected str, got ${value.kind}")
    }
}
