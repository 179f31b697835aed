package io.shoal.core.wire

import io.shoal.core.DType
import io.shoal.core.InternalShoalApi

/** Tasks of models (`wire/SPEC.md`, 'Labels'). */
internal object Tasks {
    const val CLASSIFICATION = "classification"
    const val SEQUENCE = "sequence"
    const val MULTI_LABEL = "multi-label"
    const val REGRESSION = "regression"
    const val RECONSTRUCTION = "reconstruction"
    val ALL = listOf(CLASSIFICATION, SEQUENCE, MULTI_LABEL, REGRESSION, RECONSTRUCTION)

    /** Tasks whose answers are probabilities. */
    val OF_PROBABILITIES = setOf(CLASSIFICATION, SEQUENCE, MULTI_LABEL)
}

/** Label of one window: the type of its numbers, and their shape. */
@InternalShoalApi
public data class Label(val dtype: DType, val shape: List<Int>)
