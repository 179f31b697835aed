package io.shoal.core

import io.shoal.core.wire.Train

/** Evaluation and annotation run on batches of at most this many examples. */
internal const val EVALUATION_BATCH = 256

/** Cuts examples for a graph that does not train: no batch is above [maxBatch] (null: no limit), also with the rest that joins it. */
internal fun evaluationRanges(numExamples: Int, minBatch: Int, maxBatch: Int?): List<IntRange> {
    val size = if (maxBatch == null) EVALUATION_BATCH else minOf(EVALUATION_BATCH, maxBatch - minBatch + 1).coerceAtLeast(1)
    return batchRanges(numExamples, size, minBatch)
}

/**
 * Cuts [numExamples] into batches, from the first of each up to the next's. A rest of less than half a batch shares evenly with the batch
 * before it: a step by the statistics of a few examples undoes what those before it have learned. Both are one batch where that would leave
 * one with less than [minBatch].
 */
internal fun batchRanges(numExamples: Int, batchSize: Int, minBatch: Int): List<IntRange> {
    val starts = (0 until numExamples step batchSize).toMutableList()
    val rest = if (starts.isEmpty()) 0 else numExamples - starts.last()
    if (starts.size > 1 && rest < maxOf((batchSize + 1) / 2, minBatch)) {
        starts.removeAt(starts.lastIndex)
        val both = batchSize + rest
        if (both >= 2 * minBatch) starts += starts.last() + (both + 1) / 2
    }
    return starts.mapIndexed { i, start -> start until (starts.getOrNull(i + 1) ?: numExamples) }
}

/** How many batches a training takes, of so many examples. */
internal fun numTrainingBatches(train: Train, numExamples: Int, numUnlabelled: Int, minBatch: Int): Long {
    val parts = batchRanges(numExamples, train.batchSize, minBatch).size
    val whole = batchRanges(numExamples + numUnlabelled, train.batchSize, minBatch).size
    return train.steps ?: (train.epochs * minOf(whole.toLong(), train.mostPasses.toLong() * parts))
}
