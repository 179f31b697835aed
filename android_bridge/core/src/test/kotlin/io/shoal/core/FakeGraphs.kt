package io.shoal.core

import io.shoal.core.wire.Bundle

/**
 * The graphs of `tests/android/kotlin_vectors.py`: a few float32 operations that depend on the
 * order of their examples.
 */
class FakeGraphs(override val maxBatch: Int? = null) : Graphs {
    var closed = false
        private set
    val batches = ArrayList<Int>()

    override fun run(graph: String, inputs: Tensors): Tensors {
        inputs["batch/x"]?.let { batches += it.rows }
        return when (graph) {
            "step" -> step(inputs)
            "evaluate" -> evaluate(inputs)
            "survey" -> survey(inputs)
            "weigh" -> mapOf("output/weight" to Tensor.of(sums(inputs).map { it / 64 }.toFloatArray()))
            "double" -> {
                val p = inputs.getValue("private/p").toFloatArray()
                mapOf("next/private/p" to Tensor.of(p.map { it * 2 }.toFloatArray()), "metric/norm" to Tensor.scalar(p[0]))
            }
            "predict" -> {
                val firsts = sums(inputs).map { 0.5f + it / 256 }
                val rows = firsts.flatMap { listOf(it, (1 - it) / 2, (1 - it) / 2) }.toFloatArray()
                mapOf("output/probabilities" to Tensor.of(rows, listOf(firsts.size, 3)))
            }
            "places" -> places(inputs)
            "shift" -> {
                val moved = first(inputs, "response/places.holdout") / 64
                mapOf(
                    "next/shared/b" to each(inputs, "shared/b") { b, _ -> b + moved },
                    "next/statistic/n.running_mean" to each(inputs, "statistic/n.running_mean") { m, _ -> m - moved },
                    "next/memory/k" to each(inputs, "memory/k") { k, at -> k + moved * at },
                    "metric/first" to Tensor.scalar(first(inputs, "shared/b")),
                )
            }
            else -> throw BundleException("no graph '$graph'")
        }
    }

    override fun close() {
        closed = true
    }

    private fun step(i: Tensors): Tensors {
        val order = order(i)
        val uniform = i.getValue("batch/uniform/u")
        val u = uniform.floats().get(uniform.size - 1)
        val z = first(i, "batch/normal/z")
        val (lr, mu, c) = listOf("hyper/lr", "hyper/mu", "received/c").map { first(i, it) }
        val moment = each(i, "slot/m") { m, _ -> m * mu + order }
        val start = i.getValue("received/start.w").toFloatArray()
        return mapOf(
            "next/slot/m" to moment,
            "next/shared/w" to each(i, "shared/w") { w, at -> w - lr * moment.floats().get(at) + c * (u + z) },
            "next/shared/b" to each(i, "shared/b") { b, at -> b + order * start[at] },
            "next/statistic/n.running_mean" to each(i, "statistic/n.running_mean") { m, _ -> m * 0.5f + order },
            "next/statistic/n.running_var" to each(i, "statistic/n.running_var") { v, _ -> v + (u - 0.75f) },
            "next/private/p" to each(i, "private/p") { p, _ -> p + 1 },
            "metric/loss_sum" to Tensor.scalar(order * 3),
            "metric/num_correct" to Tensor.scalar(i.getValue("batch/y").toLongArray().count { it % 2 == 0L }.toFloat()),
        )
    }

    private fun evaluate(i: Tensors): Tensors {
        val y = i.getValue("batch/y").toLongArray()
        return mapOf(
            "metric/loss_sum" to Tensor.scalar(Math.abs(first(i, "shared/w")) * y.size),
            "metric/num_correct" to Tensor.scalar(y.count { it == 1L }.toFloat()),
        )
    }

    private fun survey(i: Tensors): Tensors {
        val order = order(i)
        return mapOf(
            "metric/gradient" to each(i, "shared/w") { w, _ -> w * order },
            "metric/weight" to Tensor.scalar(i["batch/weight"]?.toFloatArray()?.sum() ?: 0f),
        )
    }

    private fun places(i: Tensors): Tensors {
        val sums = sums(i)
        val (index, holdout) = listOf("batch/rank", "batch/holdout").map { i.getValue(it).toFloatArray() }
        val y = i.getValue("batch/y").toLongArray()
        fun sum(of: (Int) -> Float) = Tensor.scalar(sums.indices.sumOf { of(it).toDouble() }.toFloat())
        return mapOf(
            "metric/place" to sum { (sums[it] + 1) * index[it] },
            "metric/count" to sum { i.getValue("batch/count").toFloatArray()[it] },
            "metric/holdout" to sum { sums[it] * holdout[it] },
            "metric/label" to sum { sums[it] * y[it] },
        )
    }

    private fun first(i: Tensors, name: String) = (i[name] ?: throw BundleException("no input '$name'")).floats().get(0)

    private fun each(i: Tensors, name: String, operation: (Float, Int) -> Float): Tensor {
        val tensor = i.getValue(name)
        return Tensor.of(tensor.toFloatArray().mapIndexed { at, value -> operation(value, at) }.toFloatArray(), tensor.shape)
    }

    private fun sums(i: Tensors): List<Float> {
        val x = i.getValue("batch/x")
        val numbers = x.toFloatArray()
        val each = numbers.size / x.rows
        return List(x.rows) { row -> (0 until each).sumOf { numbers[row * each + it].toDouble() }.toFloat() }
    }

    private fun order(i: Tensors): Float = (sums(i).withIndex().sumOf { (at, sum) -> sum.toDouble() * (at + 1) } / 65536).toFloat()
}

/** Loader of [FakeGraphs] for every bundle. */
class FakeLoader(private val maxBatch: Int? = null) : GraphLoader {
    override val runtime = "fake"
    val loaded = ArrayList<FakeGraphs>()

    override fun load(bundle: Bundle): Graphs = FakeGraphs(maxBatch).also { loaded += it }
}
