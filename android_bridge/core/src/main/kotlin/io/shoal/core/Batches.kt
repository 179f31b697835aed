package io.shoal.core

import io.shoal.core.wire.Train

/** Largest batch of a graph that does not train, where the runtime accepts as many. */
internal const val EVALUATION_BATCH = 256

/**
 * Return the batches for a graph that does not train. No batch is larger than [maxBatch] (null: no
 * limit), even if it includes the remainder.
 */
internal fun evaluationRanges(numExamples: Int, minBatch: Int, maxBatch: Int?): List<IntRange> {
    val size = if (maxBatch == null) EVALUATION_BATCH else minOf(EVALUATION_BATCH, maxBatch - minBatch + 1).coerceAtLeast(1)
    return batchRanges(numExamples, size, minBatch)
}

/**
 * Return [numExamples] cut into batches, without a last batch that is very small. A remainder of
 * less than half a batch shares evenly with the batch before it: a step by the statistics of a few
 * examples undoes what the steps before it have learned. Both become one batch if a half would have
 * fewer than [minBatch] examples.
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

/**
 * Return the number of batches of a training. An epoch is as long as a pass over all windows,
 * labelled or not, and makes no more than `mostPasses` passes over the labelled ones.
 */
internal fun numTrainingBatches(train: Train, numExamples: Int, numUnlabelled: Int, minBatch: Int): Long {
    val parts = batchRanges(numExamples, train.batchSize, minBatch).size
    val whole = batchRanges(numExamples + numUnlabelled, train.batchSize, minBatch).size
    return train.steps ?: (train.epochs * minOf(whole.toLong(), train.mostPasses.toLong() * parts))
}
