package io.shoal.core

/** What a device has kept of a model of a bundle, in a run: [tensors] is the digest of the blob that holds it. */
@InternalShoalApi
public data class Kept(val run: String, val bundle: String, val model: String, val tensors: String)

/**
 * Of which models a device holds what it has kept (`wire/SPEC.md`, 'What a device keeps'); pure, the same rules as
 * `edge_client/core/kept.py`: it is used with that model of that bundle alone; of each model the last counts, and of models the last few.
 */
internal object KeptRules {
    /** What is held once [made] was kept as well, the last one at the end. */
    fun with(held: List<Kept>, made: Kept): List<Kept> = (held.filterNot { isOf(it, made.bundle, made.model) } + made).takeLast(MOST_KEPT)

    /** What is held of this model of this bundle. */
    fun of(held: List<Kept>, bundle: String, model: String): Kept? = held.firstOrNull { isOf(it, bundle, model) }

    /** Why a model answers as it was given, although something was kept, in whatever run; empty where nothing was, or of this model. */
    fun whyAlone(held: List<Kept>, bundle: String, model: String): String {
        val last = held.lastOrNull()
        if (last == null || of(held, bundle, model) != null) return ""
        return "what is kept of run ${last.run} was made of model ${last.model.take(12)}, not of this one"
    }

    private fun isOf(kept: Kept, bundle: String, model: String) = kept.bundle == bundle && kept.model == model

    /** Of so many models something is kept: those of which it was kept last. */
    private const val MOST_KEPT = 3
}
